// What a function of Trace is written with, for Node 18 and newer: no dependencies, the same on AWS Lambda.
//
//   const { udf } = require("./trace_udf");
//   exports.handler = udf(async (task) => {
//     const rows = await task.query("SELECT id, amount FROM orders WHERE amount > 100");
//     await task.publish(rows, { dataset: "large_orders", key: "id" });
//   });
"use strict";

const crypto = require("crypto");
const http = require("http");
const https = require("https");

const BATCH_BYTES = 16 * 1024 * 1024;
const LINE_BYTES = 1024 * 1024;
const BUFFERED = "postgres_table:buffered.";
const TRIES = 6;
const ALERT_EVENTS = "alert_events";
const ALERT_KEY = ["alert_definition_id", "dedupe_key"];
const ALERTS_AT_ONCE = 1000;

// Connections outlive an invocation: a warm call costs one round trip.
const agents = {
  "http:": new http.Agent({ keepAlive: true }),
  "https:": new https.Agent({ keepAlive: true }),
};

/** Throw it when another try cannot help: the task fails for good. */
class Final extends Error {}

/** A call was refused, with the platform's message; `code` is stable. */
class Refused extends Error {
  constructor(asked, status, error) {
    const where = error.where ? ` [at ${error.where}]` : "";
    const hint = error.hint ? ` -- ${error.hint}` : "";
    super(`${asked} was refused (${status} ${error.code}): ${error.message}${where}${hint}`);
    Object.assign(this, { asked, status, code: error.code, retryable: error.retryable ?? status >= 500 });
  }
}

/** The attempt is over: canceled, or its lease is lost. Nothing it does counts any more. */
class Ended extends Error {}

class Task {
  constructor(event, context) {
    this.event = event;
    this.context = context;
    this.id = event.task_id;
    this.attempt = event.attempt;
    this.job = event.job;
    this.config = event.config ?? {};
    this.inputs = event.inputs ?? [];
    this.outputs = event.outputs ?? [];
    this.scope = event.scope ?? {};
    /** Of a source: what fired it: `kind`, and the `slot` of a schedule or the `body` of a webhook. */
    this.fired = event.fired ?? null;
    this.alerts = event.alerts ?? [];
    /** What the job remembers. Set it: it is saved with the completion, or not at all. */
    this.state = event.state ?? null;
    this.completes = event.completes ?? "function";
    this.ended = null;
    this.log = logger();
    this._token = event.capability_token;
    this._events = [];
    this._progress = null;
    this._waiting = new Map();
  }

  /** The rows of a SELECT over the inputs, by the names they have in the DAG; each as an object. */
  async query(sql, { as_of, limit, timeout_seconds } = {}) {
    const answer = await this._post(url("TRACE_QUERY_URL"), "/v1/task/query", { sql, as_of, limit, timeout_seconds });
    if (answer.truncated && limit === undefined) {
      const message = `there are more rows than the ${answer.rows.length} given`;
      const hint = "narrow the query, or give a limit";
      throw new Refused("POST /v1/task/query", 422, { code: "result_too_large", message, hint });
    }
    const names = answer.columns.map((column) => column.name);
    return answer.rows.map((row) => Object.fromEntries(row.map((value, n) => [names[n], value])));
  }

  /** Add rows to a buffered dataset. `key`: the column or columns that identify a row; of two equal keys the last counts. */
  async publish(rows, { dataset, key } = {}) {
    const output = this._output(dataset, true);
    let sent = 0;
    for (const batch of batches(rows, key)) {
      await this._publish(output, batch.body, batch.rows);
      sent += batch.rows;
    }
    return sent;
  }

  /** Emits an event for the readers of an output, with the completion. */
  emit(output, { cursor, partition_key, start, end } = {}) {
    const { dataset_uuid, dataset_version } = this._output(output, false);
    this._events.push({ dataset_uuid, dataset_version, cursor, partition_key, start, end });
  }

  /** How far it has come, for people. */
  async progress(done, total, message) {
    this._progress = { done, total, message };
    if (this.completes === "function") await this.beat();
  }

  async credentials() {
    return this._post(url("TRACE_TASK_URL"), "/v1/task/credentials", {});
  }

  /**
   * Raise an alert: once for each definition and `dedupe_key`, however often it is found. Sent in batches.
   * `definition`: one of `task.alerts`, or its name or id. More: chain_id, block_number, block_hash, tx_hash, severity,
   * payload. They go to the job's own buffered dataset; where it has several, to `alert_events` or what `dataset` names.
   */
  async alert(definition, { dataset: wanted, severity, ...message }) {
    const about = this._definition(definition);
    const dataset = this._alertOutput(wanted).dataset_uuid;
    const row = { alert_definition_id: about.alert_definition_id, ...message, severity: severity ?? about.severity };
    const waiting = this._waiting.get(dataset) ?? [];
    waiting.push(Object.fromEntries(Object.entries(row).filter(([, value]) => value !== undefined && value !== null)));
    this._waiting.set(dataset, waiting);
    if (waiting.length >= ALERTS_AT_ONCE) await this.flush();
  }

  /** Send alerts that wait. Done at the end of a function that returns, not of one that fails. */
  async flush() {
    const waiting = [...this._waiting];
    this._waiting = new Map();
    for (const [dataset, rows] of waiting) await this.publish(rows, { dataset, key: ALERT_KEY });
  }

  async beat() {
    const message = this._progress ? { progress: this._progress } : {};
    const answer = await this._post(url("TRACE_TASK_URL"), "/v1/task/heartbeat", message);
    if (answer.capability_token) this._token = answer.capability_token;
    if (answer.canceled) this.ended = new Ended("the task was canceled");
    return answer;
  }

  // `error_code`: of the refusal that ended it, if one did.
  outcome(status, error_message, retryable = true, error_code = undefined) {
    if (status !== "Completed") return { status, error_message, retryable, error_code };
    const message = { status };
    if (this._events.length) message.events = this._events;
    if (this.state !== null && JSON.stringify(this.state) !== JSON.stringify(this.event.state ?? null)) {
      message.state = this.state;
    }
    if (this._progress) message.progress = this._progress;
    return message;
  }

  async complete(outcome) {
    return this._post(url("TRACE_TASK_URL"), "/v1/task/complete", outcome);
  }

  // Named by its content: the same rows again are the same object and the same publish.
  async _publish(output, body, rows) {
    const name = `${this._folder(output.dataset_uuid)}${sha256(body)}.jsonl`;
    await this._put(name, body);
    await this._post(url("TRACE_TASK_URL"), "/v1/task/buffer-publish", {
      batch_uri: name,
      dataset_uuid: output.dataset_uuid,
      dataset_version: output.dataset_version,
      record_count: rows,
      content_type: "application/jsonl",
      batch_size_bytes: body.length,
    });
  }

  async _put(name, body) {
    const place = name.slice("s3://".length);
    if (process.env.TRACE_OBJECTS_URL) {
      const headers = { "x-trace-task-capability": this._token };
      const response = await call(url("TRACE_OBJECTS_URL"), "PUT", `/${place}`, body, headers);
      if (response.status !== 200) throw refusal(`PUT ${name}`, response);
      return;
    }
    const keys = await this.credentials();
    if (keys.kind !== "session") {
      const message = "this store has no keys, and TRACE_OBJECTS_URL is not set";
      throw new Refused(`PUT ${name}`, 500, { code: "no_object_endpoint", message });
    }
    await putAtS3(keys, place, body);
  }

  _folder(dataset) {
    const claims = JSON.parse(Buffer.from(this._token.split(".")[1], "base64url").toString());
    const found = claims.s3.write.find((one) => one.includes(`/buffers/${dataset}/`));
    if (found) return found;
    const message = `the token lets this task publish nothing to ${dataset}`;
    throw new Refused("publish", 403, { code: "forbidden", message });
  }

  _output(wanted, buffered) {
    const fitting = this.outputs.filter((one) => one.storage_location.startsWith(BUFFERED) === buffered);
    if (wanted === undefined && fitting.length === 1) return fitting[0];
    const found = fitting.find((one) => [one.name, one.dataset_uuid, one.output_index].includes(wanted));
    if (wanted !== undefined && found) return found;
    const known = fitting.map((one) => one.name ?? one.output_index).join(", ") || "none";
    throw new Error(`this job has no such output (${wanted}); it has: ${known}`);
  }

  // One buffered dataset is the one, whatever its name; of several, the name of old, unless another is wanted.
  _alertOutput(wanted) {
    const names = this.outputs.filter((one) => one.storage_location.startsWith(BUFFERED)).map((one) => one.name);
    const usual = wanted === undefined && names.length > 1 && names.includes(ALERT_EVENTS);
    return this._output(usual ? ALERT_EVENTS : wanted, true);
  }

  _definition(wanted) {
    const known = [wanted?.alert_definition_id, wanted];
    const found = this.alerts.find((one) => known.includes(one.alert_definition_id) || one.name === wanted);
    if (found) return found;
    const names = this.alerts.map((one) => one.name).join(", ") || "none";
    throw new Error(`there is no alert ${JSON.stringify(wanted)} for this task; it has: ${names}`);
  }

  async _post(base, path, message) {
    if (this.ended) throw this.ended;
    const fence = { task_id: this.id, attempt: this.attempt, lease_token: this.event.lease_token };
    const headers = { "content-type": "application/json", "x-trace-task-capability": this._token };
    const response = await call(base, "POST", path, Buffer.from(JSON.stringify({ ...fence, ...message })), headers);
    if (response.status === 200) return JSON.parse(response.body.toString());
    const refused = refusal(`POST ${path}`, response);
    if (refused.code === "lease_lost") {
      this.ended = new Ended(refused.message);
      throw this.ended;
    }
    throw refused;
  }
}

/** Makes a Lambda handler of a function: keeps the lease, and reports the end. */
function udf(run) {
  return async (event, context) => {
    const task = new Task(event, context);
    const ours = task.completes === "function";
    const beats = ours ? setInterval(() => task.beat().catch(() => {}), 1000 * (event.heartbeat_seconds ?? 30)) : null;
    try {
      let outcome = await ending(run, task);
      if (ours) outcome = await completed(task, outcome);
      return outcome;
    } catch (wrong) {
      if (!(wrong instanceof Ended)) throw wrong;
      task.log.warn(`the attempt is over: ${wrong.message}`);
      return { status: "Canceled", error_message: wrong.message };
    } finally {
      clearInterval(beats);
    }
  };
}

async function ending(run, task) {
  try {
    await run(task);
    await task.flush();
    return task.outcome("Completed");
  } catch (wrong) {
    if (wrong instanceof Ended) throw wrong;
    const text = String(wrong?.stack ?? wrong).replaceAll("\0", "?").slice(0, 20000);
    task.log.error(text);
    const retryable = wrong instanceof Refused ? wrong.retryable : !(wrong instanceof Final);
    return task.outcome("Failed", text, retryable, codeOf(wrong));
  }
}

// What the platform called it: where the fault is its own, the attempt does not count against `max_attempts`.
function codeOf(wrong) {
  return wrong instanceof Refused && wrong.code ? String(wrong.code).slice(0, 100) : undefined;
}

async function completed(task, outcome) {
  try {
    await task.complete(outcome);
    return outcome;
  } catch (refused) {
    if (!(refused instanceof Refused) || outcome.status !== "Completed") throw refused;
    const failed = task.outcome("Failed", refused.message, refused.retryable, codeOf(refused));
    await task.complete(failed);
    return failed;
  }
}

function* batches(rows, key) {
  let lines = [];
  let size = 0;
  for (const line of lined(rows, key)) {
    if (lines.length && size + line.length > BATCH_BYTES) {
      yield { body: Buffer.concat(lines), rows: lines.length };
      [lines, size] = [[], 0];
    }
    lines.push(line);
    size += line.length;
  }
  if (lines.length) yield { body: Buffer.concat(lines), rows: lines.length };
}

function* lined(rows, key) {
  if (key === undefined) {
    for (const row of rows) yield lineOf(row);
    return;
  }
  const columns = [].concat(key);
  const kept = new Map();
  for (const row of rows) {
    for (const column of columns) {
      if (row[column] === undefined || row[column] === null) throw new Error(`a row has no ${column}, part of the key`);
    }
    kept.set(JSON.stringify(columns.map((column) => row[column]), plain), lineOf(row));
  }
  for (const name of [...kept.keys()].sort()) yield kept.get(name);
}

function lineOf(row) {
  const line = Buffer.from(JSON.stringify(row, plain) + "\n");
  if (line.length > LINE_BYTES) throw new Error(`a row has ${line.length} bytes; at most ${LINE_BYTES} are taken`);
  return line;
}

/** What JSON has no word for, as the platform reads it. */
function plain(_, value) {
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "number" && !Number.isFinite(value)) throw new Error(`${value} is no number that can be stored`);
  if (value?.type === "Buffer" && Array.isArray(value.data)) return "0x" + Buffer.from(value.data).toString("hex");
  if (value instanceof Uint8Array) return "0x" + Buffer.from(value).toString("hex");
  return value;
}

async function call(base, method, path, body, headers) {
  for (let tried = 1, wait = 100; ; tried += 1, wait = Math.min(2 * wait, 5000)) {
    try {
      const response = await once(base, method, path, body, headers);
      // 504: it took too long, and would take as long again.
      if (tried === TRIES || response.status === 504 || (response.status !== 429 && response.status < 500)) return response;
    } catch (away) {
      if (tried === TRIES) {
        const message = `${base} does not answer: ${away.message}`;
        throw new Refused(`${method} ${path}`, 503, { code: "service_unavailable", message, retryable: true });
      }
    }
    await new Promise((done) => setTimeout(done, wait));
  }
}

function once(base, method, path, body, headers) {
  const where = new URL(base.replace(/\/$/, "") + path);
  const client = where.protocol === "https:" ? https : http;
  return new Promise((done, failed) => {
    const options = { method, agent: agents[where.protocol], headers: { ...headers, "content-length": body.length } };
    const request = client.request(where, options, (answer) => {
      const parts = [];
      answer.on("data", (part) => parts.push(part));
      answer.on("end", () => done({ status: answer.statusCode, body: Buffer.concat(parts) }));
      answer.on("error", failed);
    });
    request.on("error", failed);
    request.end(body);
  });
}

function refusal(asked, response) {
  try {
    return new Refused(asked, response.status, JSON.parse(response.body.toString()).error);
  } catch {
    return new Refused(asked, response.status, { code: "unknown", message: response.body.toString().slice(0, 500) });
  }
}

async function putAtS3(keys, place, body) {
  const [bucket] = place.split("/", 1);
  const key = place.slice(bucket.length);
  const base = keys.endpoint ?? `https://${bucket}.s3.${keys.region}.amazonaws.com`;
  const path = (keys.endpoint ? `/${bucket}` : "") + key.split("/").map(encodeURIComponent).join("/");
  const response = await call(base, "PUT", path, body, signed(keys, "PUT", base, path, body));
  if (response.status !== 200 && response.status !== 412) {
    throw new Refused(`PUT s3://${place}`, response.status, { code: "objects", message: response.body.toString().slice(0, 500) });
  }
}

/** The headers of a request, with AWS' signature version 4. */
function signed(keys, method, base, path, body) {
  const now = new Date().toISOString().replace(/[-:]|\.\d+/g, "");
  const message = {
    host: new URL(base).host,
    "if-none-match": "*",
    "x-amz-content-sha256": sha256(body),
    "x-amz-date": now,
    "x-amz-security-token": keys.session_token,
  };
  const names = Object.keys(message).sort();
  const lines = names.map((name) => `${name}:${message[name]}\n`).join("");
  const asked = [method, path, "", lines, names.join(";"), message["x-amz-content-sha256"]].join("\n");
  const scope = `${now.slice(0, 8)}/${keys.region}/s3/aws4_request`;
  const parts = [now.slice(0, 8), keys.region, "s3", "aws4_request"];
  const key = parts.reduce((made, part) => mac(made, part), Buffer.from(`AWS4${keys.secret_access_key}`));
  const signature = mac(key, ["AWS4-HMAC-SHA256", now, scope, sha256(Buffer.from(asked))].join("\n")).toString("hex");
  const credential = `Credential=${keys.access_key_id}/${scope}`;
  message.authorization = `AWS4-HMAC-SHA256 ${credential}, SignedHeaders=${names.join(";")}, Signature=${signature}`;
  return message;
}

function mac(key, text) {
  return crypto.createHmac("sha256", key).update(text).digest();
}

function sha256(body) {
  return crypto.createHash("sha256").update(body).digest("hex");
}

function logger() {
  const say = (level) => (text) => process.stderr.write(`${level} ${text}\n`);
  return { debug: say("DEBUG"), info: say("INFO"), warn: say("WARNING"), error: say("ERROR") };
}

function url(name) {
  const found = process.env[name];
  if (!found) throw new Error(`${name} is not set: this function runs outside of Trace`);
  return found.replace(/\/$/, "");
}

module.exports = { Ended, Final, Refused, Task, udf };
