// The Lambda Runtime API's loop for Node: what AWS's own runtime does, with nothing but what Node brings.
// `_HANDLER` is `file.function`; the file is .mjs, .js or .cjs in the bundle, ES module or CommonJS.

import http from "node:http";
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [host, port] = process.env.AWS_LAMBDA_RUNTIME_API.split(":");
const root = process.env.LAMBDA_TASK_ROOT;
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

function call(method, url, body, headers = {}) {
  return new Promise((resolve, reject) => {
    const request = http.request({ host, port, agent, method, path: `/2018-06-01/runtime${url}`, headers }, (answer) => {
      const parts = [];
      answer.on("data", (part) => parts.push(part));
      answer.on("end", () => resolve({ status: answer.statusCode, headers: answer.headers, body: Buffer.concat(parts) }));
    });
    request.on("error", reject);
    request.end(body);
  });
}

function described(wrong) {
  return JSON.stringify({
    errorType: wrong?.name ?? typeof wrong,
    errorMessage: String(wrong?.message ?? wrong),
    trace: String(wrong?.stack ?? "").split("\n"),
  });
}

async function loaded() {
  const named = process.env._HANDLER;
  const cut = named.lastIndexOf(".");
  const stem = path.join(root, named.slice(0, cut));
  const file = [".mjs", ".js", ".cjs"].map((end) => stem + end).find((one) => fs.existsSync(one));
  if (file === undefined) throw new Error(`there is no ${named.slice(0, cut)}.mjs, .js or .cjs in the bundle`);
  const found = await import(pathToFileURL(file).href);
  const handler = found[named.slice(cut + 1)] ?? found.default?.[named.slice(cut + 1)];
  if (typeof handler !== "function") throw new Error(`${path.basename(file)} has no function ${named.slice(cut + 1)}`);
  return handler;
}

function contextOf(headers) {
  const deadline = Number(headers["lambda-runtime-deadline-ms"]);
  return {
    awsRequestId: headers["lambda-runtime-aws-request-id"],
    invokedFunctionArn: headers["lambda-runtime-invoked-function-arn"],
    functionName: process.env.AWS_LAMBDA_FUNCTION_NAME,
    functionVersion: process.env.AWS_LAMBDA_FUNCTION_VERSION,
    memoryLimitInMB: process.env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE,
    getRemainingTimeInMillis: () => Math.max(0, deadline - Date.now()),
  };
}

function ran(handler, event, context) {
  if (handler.length < 3) return Promise.resolve(handler(event, context));
  return new Promise((resolve, reject) => handler(event, context, (wrong, result) => (wrong ? reject(wrong) : resolve(result))));
}

// What the handler left behind would run on into the next task: then there is no next task for this process.
const OURS = new Set(["TCPSocketWrap", "TCPWRAP", "PipeWrap", "PIPEWRAP", "TTYWrap", "TTYWRAP"]);
const leftBehind = () => process.getActiveResourcesInfo().some((kind) => !OURS.has(kind) && !idle.includes(kind));

let handler;
try {
  handler = await loaded();
} catch (wrong) {
  console.error(wrong);
  await call("POST", "/init/error", described(wrong), { "content-type": "application/json" });
  process.exit(1);
}
const idle = process.getActiveResourcesInfo();

for (;;) {
  const next = await call("GET", "/invocation/next");
  const id = next.headers["lambda-runtime-aws-request-id"];
  try {
    const result = await ran(handler, JSON.parse(next.body.toString()), contextOf(next.headers));
    await call("POST", `/invocation/${id}/response`, JSON.stringify(result ?? null));
  } catch (wrong) {
    console.error(wrong);
    await call("POST", `/invocation/${id}/error`, described(wrong), { "content-type": "application/json" });
  }
  if (leftBehind()) process.exit(0);
}
