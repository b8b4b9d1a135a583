-- latest blocks
SELECT number, hash, timestamp, gas_used FROM blocks ORDER BY number DESC LIMIT 10;

-- blocks of a day
SELECT * FROM blocks WHERE block_date = DATE '2024-03-01' ORDER BY number;

-- blocks per day
SELECT block_date, count(*) AS blocks FROM blocks GROUP BY block_date ORDER BY block_date;

-- average block time by lag
SELECT avg(seconds) AS average_seconds
  FROM (SELECT unix_timestamp(timestamp) - lag(unix_timestamp(timestamp)) OVER (ORDER BY number) AS seconds FROM blocks);

-- block time by timestampdiff
SELECT number, timestampdiff(SECOND, lag(timestamp) OVER (ORDER BY number), timestamp) AS seconds
FROM blocks ORDER BY number;

-- fullness of blocks
SELECT number, round(100.0 * gas_used / gas_limit, 2) AS percent_full FROM blocks WHERE gas_limit > 0;

-- base fee in gwei
SELECT date_trunc('hour', timestamp) AS hour, avg(base_fee_per_gas) / 1e9 AS gwei FROM blocks GROUP BY 1 ORDER BY 1;

-- base fee burnt per day
SELECT block_date, sum(cast(base_fee_per_gas AS double) * gas_used) / 1e18 AS burnt_eth FROM blocks GROUP BY block_date;

-- missing blocks
SELECT number + 1 AS gap_start, next_number - 1 AS gap_end
FROM (SELECT number, lead(number) OVER (ORDER BY number) AS next_number FROM blocks)
WHERE next_number > number + 1;

-- islands of consecutive blocks
WITH grouped AS (SELECT number, number - row_number() OVER (ORDER BY number) AS island FROM blocks)
SELECT min(number) AS first_block, max(number) AS last_block, count(*) AS blocks
FROM grouped GROUP BY island ORDER BY first_block;

-- duplicate block numbers
SELECT number, count(DISTINCT hash) AS versions FROM blocks GROUP BY number HAVING count(DISTINCT hash) > 1;

-- broken parent links
SELECT b.number, b.parent_hash, p.hash FROM blocks b LEFT JOIN blocks p ON p.number = b.number - 1
WHERE p.hash IS DISTINCT FROM b.parent_hash AND b.number > 0;

-- miners by share
SELECT miner, count(*) AS blocks, count(*) / sum(count(*)) OVER () AS share
FROM blocks GROUP BY miner ORDER BY blocks DESC;

-- top miner of each day with qualify
SELECT block_date, miner, count(*) AS blocks FROM blocks GROUP BY block_date, miner
QUALIFY row_number() OVER (PARTITION BY block_date ORDER BY blocks DESC, miner) = 1 ORDER BY block_date;

-- last block of each hour
SELECT date_trunc('HOUR', timestamp) AS hour, max_by(hash, number) AS hash FROM blocks GROUP BY 1;

-- transactions per block statistics
SELECT min(transaction_count) AS least, max(transaction_count) AS most, avg(transaction_count) AS mean,
       stddev(transaction_count) AS deviation, median(transaction_count) AS middle
FROM blocks;

-- percentiles of block size
SELECT percentile_approx(size, array(0.5, 0.9, 0.99)) AS sizes FROM blocks;

-- continuous percentile
SELECT percentile_cont(0.95) WITHIN GROUP (ORDER BY gas_used) AS p95 FROM blocks;

-- histogram of gas used
SELECT width_bucket(gas_used, 0, 30000000, 10) AS bucket, count(*) AS blocks FROM blocks GROUP BY 1 ORDER BY 1;

-- moving average of gas used
SELECT number, avg(gas_used) OVER (ORDER BY number ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS moving_average
FROM blocks ORDER BY number;

-- transactions of an address
SELECT * FROM transactions WHERE lower(from_address) = lower('0xABC') OR to_address = '0xabc' ORDER BY block_number, tx_index;

-- value in ether
SELECT hash, cast(value AS double) / power(10, 18) AS eth FROM transactions ORDER BY eth DESC LIMIT 20;

-- failed transactions share
SELECT count_if(status = 0) / count(*) AS failed_share FROM transactions;

-- contract creations
SELECT hash, from_address, block_number FROM transactions WHERE to_address IS NULL;

-- method ids
SELECT substring(input, 1, 10) AS method_id, count(*) AS calls
FROM transactions WHERE length(input) >= 10 GROUP BY 1 ORDER BY calls DESC LIMIT 25;

-- method ids, standard form
SELECT substring(input FROM 1 FOR 10) AS method_id, count(*) AS calls FROM transactions GROUP BY 1;

-- fees paid per sender
SELECT from_address, sum(gas_used * gas_price) AS fees FROM transactions GROUP BY from_address ORDER BY fees DESC;

-- senders and receivers in one list
SELECT from_address AS address FROM transactions UNION SELECT to_address FROM transactions WHERE to_address IS NOT NULL;

-- addresses that only receive
SELECT DISTINCT to_address AS address FROM transactions WHERE to_address IS NOT NULL
EXCEPT SELECT from_address FROM transactions;

-- addresses that do both
SELECT from_address AS address FROM transactions INTERSECT SELECT to_address FROM transactions;

-- nonces that are missing
SELECT from_address, nonce, nonce - lag(nonce, 1, -1) OVER (PARTITION BY from_address ORDER BY nonce) - 1 AS missing
FROM transactions QUALIFY missing > 0;

-- first transaction of each sender
SELECT * FROM transactions QUALIFY row_number() OVER (PARTITION BY from_address ORDER BY block_number, tx_index) = 1;

-- new senders per day
WITH firsts AS (SELECT from_address, min(to_date(block_timestamp)) AS day FROM transactions GROUP BY from_address)
SELECT day, count(*) AS new_senders, sum(count(*)) OVER (ORDER BY day) AS all_senders FROM firsts GROUP BY day ORDER BY day;

-- daily active addresses
SELECT to_date(block_timestamp) AS day, approx_count_distinct(from_address) AS active FROM transactions GROUP BY 1;

-- weekly active addresses
SELECT date_trunc('WEEK', block_timestamp) AS week, count(DISTINCT from_address) AS active FROM transactions GROUP BY week;

-- transactions per hour of the day
SELECT hour(block_timestamp) AS hour, count(*) AS transactions FROM transactions GROUP BY hour(block_timestamp) ORDER BY hour;

-- transactions per weekday
SELECT date_format(block_timestamp, 'EEEE') AS weekday, count(*) AS n FROM transactions GROUP BY 1 ORDER BY 2 DESC;

-- heat map of weekday and hour
SELECT * FROM (SELECT dayofweek(block_timestamp) AS weekday, hour(block_timestamp) AS hour, hash FROM transactions)
PIVOT (count(hash) FOR weekday IN (1 AS sun, 2 AS mon, 3 AS tue, 4 AS wed, 5 AS thu, 6 AS fri, 7 AS sat)) ORDER BY hour;

-- transactions by type, pivoted
SELECT * FROM (SELECT to_date(block_timestamp) AS day, tx_type FROM transactions)
PIVOT (count(1) FOR tx_type IN (0 AS legacy, 1 AS access_list, 2 AS dynamic_fee));

-- pivot of two aggregates with an alias
SELECT p.day, p.ok_fees, p.failed_n
FROM (SELECT to_date(block_timestamp) AS day, status, gas_used FROM transactions)
PIVOT (sum(gas_used) AS fees, count(*) AS n FOR status IN (1 AS ok, 0 AS failed)) AS p ORDER BY p.day;

-- unpivot of block counters
SELECT number, counter, amount FROM (SELECT number, gas_used, gas_limit FROM blocks)
UNPIVOT (amount FOR counter IN (gas_used, gas_limit)) ORDER BY number, counter;

-- cumulative value per sender
SELECT from_address, block_number, sum(value) OVER (PARTITION BY from_address ORDER BY block_number, tx_index) AS total
FROM transactions;

-- rank of gas prices in a block
SELECT block_number, hash, dense_rank() OVER (PARTITION BY block_number ORDER BY gas_price DESC) AS place FROM transactions;

-- quartiles of gas prices
SELECT hash, ntile(4) OVER (ORDER BY gas_price) AS quartile FROM transactions;

-- gas price against the block's median
SELECT t.hash, t.gas_price / m.middle AS ratio
FROM transactions t
JOIN (SELECT block_number, median(gas_price) AS middle FROM transactions GROUP BY block_number) m USING (block_number);

-- fees and blocks joined
SELECT b.block_date, sum(t.gas_used * (cast(t.gas_price AS double) - cast(b.base_fee_per_gas AS double))) / 1e18 AS tips
FROM transactions t JOIN blocks b ON b.number = t.block_number GROUP BY b.block_date;

-- blocks without transactions
SELECT b.number FROM blocks b LEFT ANTI JOIN transactions t ON t.block_number = b.number;

-- blocks with a failed transaction
SELECT b.number FROM blocks b LEFT SEMI JOIN transactions t ON t.block_number = b.number AND t.status = 0;

-- blocks whose count does not match
SELECT b.number, b.transaction_count, count(t.hash) AS found
FROM blocks b LEFT JOIN transactions t ON t.block_number = b.number
GROUP BY b.number, b.transaction_count HAVING count(t.hash) <> b.transaction_count;

-- exists
SELECT number FROM blocks b WHERE EXISTS (SELECT 1 FROM transactions t WHERE t.block_number = b.number AND t.value > 0);

-- in a subquery
SELECT * FROM transactions WHERE from_address IN (SELECT address FROM labels WHERE kind = 'exchange');

-- not in a list
SELECT * FROM transactions WHERE tx_type NOT IN (0, 1) AND status = 1;

-- scalar subquery
SELECT hash, gas_price, (SELECT avg(gas_price) FROM transactions) AS mean FROM transactions
WHERE gas_price > (SELECT percentile(gas_price, 0.9) FROM transactions);

-- size classes
SELECT CASE WHEN value = 0 THEN 'zero' WHEN value < 1e17 THEN 'small' WHEN value < 1e19 THEN 'middle' ELSE 'large' END AS class,
       count(*) AS n FROM transactions GROUP BY 1 ORDER BY n DESC;

-- status in words
SELECT hash, CASE status WHEN 1 THEN 'ok' WHEN 0 THEN 'failed' ELSE 'unknown' END AS status FROM transactions;

-- filtered aggregates
SELECT block_number, count(*) FILTER (WHERE status = 1) AS ok, count(*) FILTER (WHERE status = 0) AS failed,
       max(value) FILTER (WHERE to_address IS NOT NULL) AS largest
FROM transactions GROUP BY block_number;

-- totals by rollup
SELECT to_date(block_timestamp) AS day, tx_type, count(*) AS n FROM transactions
GROUP BY ROLLUP (to_date(block_timestamp), tx_type) ORDER BY day NULLS LAST, tx_type NULLS LAST;

-- totals by cube
SELECT status, tx_type, grouping_id(status, tx_type) AS level, count(*) AS n
FROM transactions GROUP BY CUBE (status, tx_type);

-- grouping sets
SELECT from_address, to_address, sum(value) AS value FROM transactions
GROUP BY GROUPING SETS ((from_address), (to_address), ());

-- group by all
SELECT status, tx_type, sum(gas_used) AS gas FROM transactions GROUP BY ALL ORDER BY ALL;

-- with rollup, old form
SELECT status, count(*) AS n FROM transactions GROUP BY status WITH ROLLUP;

-- hex to number
SELECT hash, conv(substring(input, 3, 8), 16, 10) AS selector FROM transactions WHERE input LIKE '0x%';

-- number to hex
SELECT number, concat('0x', lower(hex(number))) AS number_hex FROM blocks;

-- padded topic of an address
SELECT concat('0x', lpad(substring(from_address, 3), 64, '0')) AS topic FROM transactions;

-- padding by repeat
SELECT concat('0x', repeat('0', 64 - length(substring(from_address, 3))), substring(from_address, 3)) AS topic FROM transactions;

-- address out of a topic
SELECT concat('0x', right(topics[1], 40)) AS sender, count(*) AS n FROM logs WHERE size(topics) > 1 GROUP BY 1;

-- transfer events by topic
SELECT address, count(*) AS transfers FROM logs
WHERE topics[0] = '0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef' GROUP BY address;

-- amount out of data
SELECT tx_hash, try_cast(conv(right(data, 12), 16, 10) AS decimal(38, 0)) AS amount FROM logs;

-- words of data
SELECT tx_hash, log_index, transform(sequence(0, 3), i -> substring(data, 3 + i * 64, 64)) AS words FROM logs;

-- number of words in data
SELECT tx_hash, (length(data) - 2) DIV 64 AS words FROM logs WHERE data <> '0x';

-- bytes of data
SELECT tx_hash, octet_length(unhex(substring(data, 3))) AS bytes FROM logs;

-- topics as rows
SELECT tx_hash, log_index, topic FROM logs LATERAL VIEW explode(topics) t AS topic;

-- topics with their place
SELECT l.tx_hash, p.place, p.topic FROM logs l LATERAL VIEW OUTER posexplode(l.topics) p AS place, topic WHERE p.place < 3;

-- explode in the list
SELECT address, explode(topics) AS topic FROM logs;

-- parameters as rows
SELECT tx_hash, key, value FROM logs LATERAL VIEW explode(params) p AS key, value WHERE key <> 'value';

-- one parameter
SELECT tx_hash, params['from'] AS sender, try_element_at(params, 'to') AS receiver FROM logs WHERE event_name = 'Transfer';

-- keys of parameters
SELECT array_sort(map_keys(params)) AS keys, count(*) AS n FROM logs GROUP BY 1;

-- parameters as a text
SELECT tx_hash, to_json(params) AS params FROM logs;

-- filtered parameters
SELECT tx_hash, map_filter(params, (k, v) -> k <> 'value') AS rest FROM logs;

-- events per contract
SELECT address, collect_set(event_name) AS events, size(collect_set(event_name)) AS kinds FROM logs GROUP BY address;

-- event names in a line
SELECT tx_hash, array_join(collect_list(event_name), ' > ') AS path FROM logs GROUP BY tx_hash;

-- event names in order
SELECT tx_hash, array_join(transform(array_sort(collect_list(struct(log_index, event_name))), e -> e.event_name), ',') AS path
FROM logs GROUP BY tx_hash;

-- listagg in order
SELECT tx_hash, listagg(event_name, ',') WITHIN GROUP (ORDER BY log_index) AS path FROM logs GROUP BY tx_hash;

-- logs per transaction
SELECT t.hash, count(l.log_index) AS logs FROM transactions t LEFT JOIN logs l ON l.tx_hash = t.hash GROUP BY t.hash;

-- logs that no transaction has
SELECT l.* FROM logs l LEFT JOIN transactions t ON t.hash = l.tx_hash WHERE t.hash IS NULL;

-- swaps and transfers in one transaction
SELECT tx_hash FROM logs GROUP BY tx_hash
HAVING bool_or(event_name = 'Swap') AND count_if(event_name = 'Transfer') >= 2;

-- events by regular expression
SELECT event_name, count(*) AS n FROM logs WHERE event_name RLIKE '^(Mint|Burn|Swap)' GROUP BY event_name;

-- names by like
SELECT * FROM tokens WHERE symbol LIKE 'W%' OR name ILIKE '%stable%' OR symbol LIKE ANY ('USD%', '%DAI');

-- underscore as it is
SELECT * FROM tokens WHERE name LIKE '%\_v2' ESCAPE '\\' OR name LIKE '50!%' ESCAPE '!';

-- a quote in a name
SELECT * FROM tokens WHERE name = 'Cat''s token' OR name = "it's";

-- valid addresses
SELECT address, address RLIKE '^0x[0-9a-fA-F]{40}$' AS valid FROM tokens;

-- name in parts
SELECT name, split(name, ' ')[0] AS first_word, split_part(name, ' ', 2) AS second_word, initcap(name) AS title FROM tokens;

-- version out of a name
SELECT name, regexp_extract(name, 'v([0-9]+)', 1) AS version, regexp_replace(name, '[^A-Za-z0-9]+', '_') AS slug FROM tokens;

-- category of a token
SELECT attributes.category, count(*) AS tokens FROM tokens GROUP BY attributes.category;

-- tokens with a tag
SELECT symbol FROM tokens WHERE array_contains(attributes.tags, 'stable') AND size(attributes.tags) > 0;

-- tags as rows
SELECT tag, count(*) AS tokens FROM tokens LATERAL VIEW explode(attributes.tags) x AS tag GROUP BY tag ORDER BY 2 DESC;

-- tags in capital letters
SELECT symbol, transform(attributes.tags, tag -> upper(tag)) AS tags,
       exists(attributes.tags, tag -> tag LIKE 'st%') AS is_st, forall(attributes.tags, tag -> length(tag) < 20) AS short
FROM tokens;

-- a field of json
SELECT symbol, get_json_object(meta, '$.website') AS website FROM tokens;

-- json as a struct
SELECT symbol, m.website, m.links[0] AS first_link
FROM (SELECT symbol, from_json(meta, 'website string, links array<string>') AS m FROM tokens);

-- json length
SELECT symbol, json_array_length(get_json_object(meta, '$.links')) AS links FROM tokens;

-- variant
SELECT symbol, try_variant_get(try_parse_json(meta), '$.rank', 'int') AS rank FROM tokens;

-- a row as json
SELECT to_json(named_struct('symbol', symbol, 'decimals', decimals)) AS row FROM tokens;

-- amounts with decimals
SELECT t.tx_hash, k.symbol, cast(t.value AS double) / pow(10, k.decimals) AS amount
FROM transfers t JOIN tokens k ON k.address = t.token;

-- exact amounts with decimals
SELECT t.tx_hash, cast(t.value AS decimal(38, 18)) / cast(power(10, k.decimals) AS decimal(20, 0)) AS amount
FROM transfers t JOIN tokens k ON k.address = t.token WHERE t.value < 1000000;

-- broadcast of the small table
SELECT /*+ BROADCAST(k) */ k.symbol, count(*) AS transfers FROM transfers t JOIN tokens k ON k.address = t.token GROUP BY k.symbol;

-- other join hints
SELECT /*+ MERGE(b), SHUFFLE_HASH(k) */ k.symbol, b.block_date, count(*) AS n
FROM transfers t JOIN tokens k ON k.address = t.token JOIN blocks b ON b.number = t.block_number GROUP BY 1, 2;

-- volume per token and day
SELECT token, to_date(block_timestamp) AS day, sum(value) AS volume, count(*) AS transfers,
       count(DISTINCT from_address) AS senders FROM transfers GROUP BY token, to_date(block_timestamp);

-- transfers in windows of an hour
SELECT window.start AS hour, token, count(*) AS n FROM transfers GROUP BY window(block_timestamp, '1 hour'), token ORDER BY hour;

-- sliding windows
SELECT window(block_timestamp, '1 hour', '15 minutes') AS w, sum(value) AS volume FROM transfers
GROUP BY window(block_timestamp, '1 hour', '15 minutes') ORDER BY w.start;

-- end of a window
SELECT w.end AS until, n FROM (SELECT window(block_timestamp, '1 day') AS w, count(*) AS n FROM transfers GROUP BY 1) ORDER BY until;

-- sessions by session_window
SELECT from_address, session_window.start AS started, session_window.end AS ended, count(*) AS transfers
FROM transfers GROUP BY from_address, session_window(block_timestamp, '30 minutes');

-- sessions by hand
WITH marked AS (
  SELECT from_address, block_timestamp,
         CASE WHEN block_timestamp - lag(block_timestamp) OVER (PARTITION BY from_address ORDER BY block_timestamp)
                   < INTERVAL 30 MINUTES THEN 0 ELSE 1 END AS is_new
    FROM transfers),
numbered AS (SELECT *, sum(is_new) OVER (PARTITION BY from_address ORDER BY block_timestamp) AS session FROM marked)
SELECT from_address, session, min(block_timestamp) AS started, count(*) AS transfers FROM numbered GROUP BY 1, 2;

-- balances
WITH movements AS (
  SELECT token, to_address AS address, value FROM transfers
  UNION ALL SELECT token, from_address, -value FROM transfers)
SELECT token, address, sum(value) AS balance FROM movements GROUP BY token, address HAVING sum(value) <> 0;

-- balances over time
WITH movements AS (
  SELECT block_number, log_index, token, to_address AS address, value AS delta FROM transfers
  UNION ALL SELECT block_number, log_index, token, from_address, -value FROM transfers)
SELECT address, token, block_number,
       sum(delta) OVER (PARTITION BY address, token ORDER BY block_number, log_index
                        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS balance FROM movements;

-- holders per token
WITH balances AS (
  SELECT token, address, sum(delta) AS balance FROM (
    SELECT token, to_address AS address, value AS delta FROM transfers
    UNION ALL SELECT token, from_address AS address, -value AS delta FROM transfers) GROUP BY token, address)
SELECT token, count(*) AS holders, max(balance) AS largest, max(balance) / sum(balance) AS concentration
FROM balances WHERE balance > 0 GROUP BY token;

-- top holders of each token
SELECT token, to_address, received FROM (
  SELECT token, to_address, sum(value) AS received,
         rank() OVER (PARTITION BY token ORDER BY sum(value) DESC) AS place
    FROM transfers GROUP BY token, to_address)
WHERE place <= 5 ORDER BY token, place;

-- gini of receivers
WITH ranked AS (
  SELECT token, cast(sum(value) AS double) AS v, row_number() OVER (PARTITION BY token ORDER BY sum(value)) AS i,
         count(*) OVER (PARTITION BY token) AS n FROM transfers GROUP BY token, to_address)
SELECT token, try_divide(2 * sum(i * v), max(n) * sum(v)) - (max(n) + 1) / max(n) AS gini FROM ranked GROUP BY token;

-- mints and burns
SELECT token,
       sum(CASE WHEN from_address = '0x0000000000000000000000000000000000000000' THEN value ELSE 0 END) AS minted,
       sum(if(to_address = '0x0000000000000000000000000000000000000000', value, 0)) AS burnt
FROM transfers GROUP BY token;

-- self transfers
SELECT * FROM transfers WHERE from_address = to_address;

-- transfers there and back
SELECT a.tx_hash AS there, b.tx_hash AS back, b.block_number - a.block_number AS blocks_between
FROM transfers a JOIN transfers b ON a.from_address = b.to_address AND a.to_address = b.from_address AND a.token = b.token
AND b.block_number BETWEEN a.block_number AND a.block_number + 100 AND a.tx_hash <> b.tx_hash;

-- three hops
SELECT a.from_address, b.from_address AS via, c.from_address AS via_too, c.to_address
FROM transfers a JOIN transfers b ON b.from_address = a.to_address AND b.block_number > a.block_number
JOIN transfers c ON c.from_address = b.to_address AND c.block_number > b.block_number;

-- pairs of addresses
SELECT least(from_address, to_address) AS one, greatest(from_address, to_address) AS other, count(*) AS n, sum(value) AS volume
FROM transfers GROUP BY 1, 2 HAVING count(*) > 1;

-- whales by ten times the mean
WITH means AS (SELECT token, avg(value) AS mean FROM transfers GROUP BY token)
SELECT t.* FROM transfers t JOIN means m ON m.token = t.token AND t.value > 10 * m.mean;

-- outliers by deviation
SELECT * FROM (SELECT *, (value - avg(value) OVER (PARTITION BY token)) / nullif(stddev(value) OVER (PARTITION BY token), 0) AS z
FROM transfers) WHERE abs(z) > 3;

-- first and last transfer
SELECT token, first_value(tx_hash) OVER w AS first_tx, last_value(tx_hash) OVER w AS last_tx FROM transfers
WINDOW w AS (PARTITION BY token ORDER BY block_number, log_index ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING);

-- time since the last transfer
SELECT token, block_timestamp, block_timestamp - lag(block_timestamp) OVER (PARTITION BY token ORDER BY block_timestamp) AS since
FROM transfers;

-- transfers of the last hours by range
SELECT token, block_timestamp, count(*) OVER (PARTITION BY token ORDER BY block_timestamp
       RANGE BETWEEN INTERVAL 6 HOURS PRECEDING AND CURRENT ROW) AS recent FROM transfers;

-- the last known price
SELECT t.tx_hash, max_by(p.usd, p.ts) AS usd FROM transfers t
LEFT JOIN prices p ON p.token = t.token AND p.ts <= t.block_timestamp AND p.ts > t.block_timestamp - INTERVAL 1 DAY
GROUP BY t.tx_hash;

-- price at the hour
SELECT t.tx_hash, cast(t.value AS double) / 1e18 * p.usd AS usd FROM transfers t
LEFT JOIN prices p ON p.token = t.token AND p.ts = date_trunc('hour', t.block_timestamp);

-- open high low close
SELECT token, date_trunc('day', ts) AS day, min_by(usd, ts) AS open, max(usd) AS high, min(usd) AS low, max_by(usd, ts) AS close
FROM prices GROUP BY token, date_trunc('day', ts);

-- candles of five minutes
SELECT token, timestamp_seconds(unix_timestamp(ts) - unix_timestamp(ts) % 300) AS candle, first(usd) AS open, avg(usd) AS mean
FROM prices GROUP BY 1, 2;

-- returns
SELECT token, ts, usd / lag(usd) OVER (PARTITION BY token ORDER BY ts) - 1 AS change,
       ln(usd / lag(usd) OVER (PARTITION BY token ORDER BY ts)) AS log_change FROM prices;

-- volatility
WITH changes AS (SELECT token, ts, ln(usd / lag(usd) OVER (PARTITION BY token ORDER BY ts)) AS r FROM prices)
SELECT token, stddev_samp(r) * sqrt(365) AS volatility FROM changes WHERE r IS NOT NULL GROUP BY token;

-- correlation of two tokens
SELECT corr(a.usd, b.usd) AS correlation, regr_slope(a.usd, b.usd) AS beta
FROM prices a JOIN prices b USING (ts) WHERE a.token = '0xa' AND b.token = '0xb';

-- filled prices
SELECT token, ts, last_value(usd, true) OVER (PARTITION BY token ORDER BY ts) AS usd,
       coalesce(usd, lag(usd) IGNORE NULLS OVER (PARTITION BY token ORDER BY ts)) AS usd_too FROM prices;

-- drawdown
SELECT token, ts, usd / max(usd) OVER (PARTITION BY token ORDER BY ts) - 1 AS drawdown FROM prices;

-- exponential average by aggregate
SELECT token, aggregate(transform(array_sort(collect_list(struct(ts, usd))), x -> x.usd), cast(0 AS double),
                        (acc, x) -> 0.9 * acc + 0.1 * x) AS smooth FROM prices GROUP BY token;

-- calendar with gaps filled
WITH days AS (SELECT explode(sequence(DATE '2024-03-01', DATE '2024-03-31', INTERVAL 1 DAY)) AS day)
SELECT d.day, coalesce(sum(v.volume), 0) AS volume FROM days d LEFT JOIN daily_volume v ON v.day = d.day GROUP BY d.day;

-- calendar by to_date
SELECT explode(sequence(to_date('2024-01-01'), to_date('2024-12-31'))) AS day;

-- calendar of the last days
SELECT d.day, count(t.tx_hash) AS transfers
FROM (SELECT explode(sequence(current_date() - INTERVAL 30 DAYS, current_date(), INTERVAL 1 DAY)) AS day) d
LEFT JOIN transfers t ON to_date(t.block_timestamp) = d.day GROUP BY d.day ORDER BY d.day;

-- hours of a day
SELECT explode(sequence(TIMESTAMP '2024-03-01 00:00:00', TIMESTAMP '2024-03-01 23:00:00', INTERVAL 1 HOUR)) AS hour;

-- numbers
SELECT n, n * n AS square FROM (SELECT explode(sequence(1, 100)) AS n) WHERE n % 7 = 0;

-- growth week over week
SELECT day, volume, try_divide(volume - lag(volume, 7) OVER (PARTITION BY token ORDER BY day),
                               lag(volume, 7) OVER (PARTITION BY token ORDER BY day)) AS growth FROM daily_volume;

-- seven day mean
SELECT day, token, avg(volume) OVER (PARTITION BY token ORDER BY day ROWS 6 PRECEDING) AS mean7 FROM daily_volume;

-- month to date
SELECT day, token, sum(volume) OVER (PARTITION BY token, trunc(day, 'MM') ORDER BY day) AS month_to_date FROM daily_volume;

-- months
SELECT date_format(day, 'yyyy-MM') AS month, token, sum(volume) AS volume FROM daily_volume GROUP BY 1, 2 ORDER BY 1, 2;

-- quarters
SELECT year(day) AS year, quarter(day) AS quarter, sum(volume) AS volume FROM daily_volume GROUP BY year(day), quarter(day);

-- this month and the one before
SELECT token, sum(CASE WHEN day >= trunc(current_date, 'MM') THEN volume ELSE 0 END) AS this_month,
       sum(CASE WHEN day >= add_months(trunc(current_date, 'MM'), -1) AND day < trunc(current_date, 'MM') THEN volume END) AS before
FROM daily_volume GROUP BY token;

-- last seven days
SELECT * FROM daily_volume WHERE day >= current_date - INTERVAL 7 DAYS;

-- last day by date_sub
SELECT * FROM daily_volume WHERE day BETWEEN date_sub(current_date(), 30) AND date_add(current_date(), -1);

-- since a time
SELECT * FROM transfers WHERE block_timestamp >= now() - INTERVAL '24' HOUR;

-- since a time by timestampadd
SELECT * FROM transfers WHERE block_timestamp >= timestampadd(DAY, -7, current_timestamp());

-- age in days
SELECT token, datediff(current_date(), max(day)) AS days_quiet, months_between(max(day), min(day)) AS months FROM daily_volume GROUP BY token;

-- date differences with units
SELECT token, datediff(DAY, min(day), max(day)) AS days, timestampdiff(WEEK, min(day), max(day)) AS weeks FROM daily_volume GROUP BY token;

-- parts of dates
SELECT day, extract(YEAR FROM day) AS year, date_part('week', day) AS week, dayofyear(day) AS nth, last_day(day) AS month_end,
       next_day(day, 'MON') AS monday FROM daily_volume;

-- share of a token in the day
SELECT day, token, volume / sum(volume) OVER (PARTITION BY day) AS share FROM daily_volume;

-- pareto
SELECT token, volume, sum(volume) OVER (ORDER BY volume DESC) / sum(volume) OVER () AS cumulative
FROM (SELECT token, sum(volume) AS volume FROM daily_volume GROUP BY token);

-- best day of each token
SELECT token, max(struct(volume, day)).day AS best_day FROM daily_volume GROUP BY token;

-- days without volume
SELECT t.token, d.day FROM (SELECT DISTINCT token FROM daily_volume) t CROSS JOIN (SELECT DISTINCT day FROM daily_volume) d
LEFT JOIN daily_volume v ON v.token = t.token AND v.day = d.day WHERE v.day IS NULL;

-- streaks of rising volume
WITH marked AS (SELECT *, CASE WHEN volume > lag(volume) OVER (PARTITION BY token ORDER BY day) THEN 0 ELSE 1 END AS breaks
                  FROM daily_volume),
streaks AS (SELECT *, sum(breaks) OVER (PARTITION BY token ORDER BY day) AS streak FROM marked)
SELECT token, min(day) AS since, count(*) AS days FROM streaks GROUP BY token, streak HAVING count(*) >= 2;

-- cohorts by first month
WITH firsts AS (SELECT from_address, trunc(min(block_timestamp), 'MM') AS cohort FROM transfers GROUP BY from_address),
active AS (SELECT DISTINCT from_address, trunc(block_timestamp, 'MM') AS month FROM transfers)
SELECT f.cohort, cast(months_between(a.month, f.cohort) AS int) AS months_later, count(*) AS addresses
FROM firsts f JOIN active a USING (from_address) GROUP BY 1, 2 ORDER BY 1, 2;

-- retention of the next day
SELECT a.day, count(DISTINCT a.from_address) AS active, count(DISTINCT b.from_address) AS came_back
FROM (SELECT DISTINCT from_address, to_date(block_timestamp) AS day FROM transfers) a
LEFT JOIN (SELECT DISTINCT from_address, to_date(block_timestamp) AS day FROM transfers) b
  ON b.from_address = a.from_address AND b.day = date_add(a.day, 1) GROUP BY a.day;

-- funnel
WITH steps AS (
  SELECT address, min(CASE WHEN event_name = 'Approval' THEN block_number END) AS approved,
         min(CASE WHEN event_name = 'Swap' THEN block_number END) AS swapped,
         min(CASE WHEN event_name = 'Transfer' THEN block_number END) AS moved FROM logs GROUP BY address)
SELECT count(*) AS everyone, count(approved) AS approved, count_if(swapped >= approved) AS then_swapped,
       count_if(moved >= swapped AND swapped >= approved) AS then_moved FROM steps;

-- swap prices
SELECT pool, tx_hash, try_divide(amount_in, amount_out) AS price FROM swaps;

-- volume of pools both ways
SELECT pool, token_in, token_out, sum(amount_in) AS volume_in FROM swaps GROUP BY pool, token_in, token_out
UNION ALL SELECT pool, 'all', 'all', sum(amount_in) FROM swaps GROUP BY pool;

-- sandwiches
SELECT a.tx_hash AS front, v.tx_hash AS victim, b.tx_hash AS back
FROM swaps a JOIN swaps v ON v.block_number = a.block_number AND v.pool = a.pool AND v.log_index > a.log_index
JOIN swaps b ON b.block_number = v.block_number AND b.pool = v.pool AND b.log_index > v.log_index
WHERE a.sender = b.sender AND a.sender <> v.sender AND a.token_in = b.token_out;

-- arbitrage in one transaction
SELECT tx_hash, count(DISTINCT pool) AS pools FROM swaps GROUP BY tx_hash
HAVING count(DISTINCT pool) > 1 AND first(token_in) = last(token_out);

-- routes
SELECT tx_hash, concat_ws(' -> ', collect_list(token_in)) AS route FROM swaps GROUP BY tx_hash;

-- most used routes
SELECT array(token_in, token_out) AS route, count(*) AS n FROM swaps GROUP BY array(token_in, token_out) ORDER BY n DESC;

-- symmetric pairs
SELECT sort_array(array(token_in, token_out)) AS pair, sum(amount_in) AS volume FROM swaps GROUP BY 1;

-- map of volumes
SELECT pool, map_from_entries(collect_list(struct(token_in, amount_in))) AS by_token
FROM (SELECT pool, token_in, sum(amount_in) AS amount_in FROM swaps GROUP BY pool, token_in) GROUP BY pool;

-- swaps with labels of both sides
SELECT s.tx_hash, coalesce(a.label, s.sender) AS sender, nvl(p.label, 'unknown pool') AS pool
FROM swaps s LEFT JOIN labels a ON a.address = s.sender LEFT JOIN labels p ON p.address = s.pool;

-- full join of two days
SELECT coalesce(a.token, b.token) AS token, a.volume AS before, b.volume AS after, nvl(b.volume, 0) - nvl(a.volume, 0) AS change
FROM (SELECT * FROM daily_volume WHERE day = '2024-03-01') a
FULL OUTER JOIN (SELECT * FROM daily_volume WHERE day = '2024-03-02') b ON a.token = b.token;

-- right join
SELECT k.symbol, v.volume FROM daily_volume v RIGHT JOIN tokens k ON k.address = v.token;

-- natural join
SELECT token, day, volume FROM daily_volume NATURAL JOIN (SELECT address AS token FROM tokens);

-- values as a table
SELECT c.name, count(*) AS blocks FROM blocks b JOIN (VALUES (1, 'mainnet'), (10, 'optimism')) AS c (id, name) ON c.id = b.chain_id GROUP BY c.name;

-- inline table first
SELECT * FROM VALUES ('0xa', 18), ('0xb', 6) AS d (token, decimals) ORDER BY token;

-- stack of columns
SELECT number, kind, amount FROM blocks LATERAL VIEW stack(2, 'used', gas_used, 'limit', gas_limit) s AS kind, amount;

-- all but some columns
SELECT * EXCEPT (input, nonce) FROM transactions;

-- columns with blanks in their names
SELECT from_address AS `the sender`, sum(value) AS `total value` FROM transactions GROUP BY from_address ORDER BY `total value` DESC;

-- lateral column alias
SELECT gas_used * cast(gas_price AS double) AS wei, wei / 1e18 AS eth, eth * 3000 AS usd FROM transactions;

-- casts
SELECT value::string AS text, cast(gas_used AS double) AS d, try_cast(input AS int) AS i, bigint(status) AS b, decimal(status) AS x FROM transactions;

-- bits
SELECT number, number & 1 AS odd, number | 8 AS with_bit, number ^ 3 AS flipped, ~number AS inverse, number << 2 AS times_four,
       number >> 1 AS half, bit_count(number) AS ones FROM blocks;

-- hashes
SELECT hash, md5(hash) AS m, sha2(hash, 256) AS s, crc32(hash) AS c, xxhash64(hash) % 16 AS shard FROM transactions;

-- shards by hash
SELECT pmod(hash(from_address), 10) AS shard, count(*) AS n FROM transactions GROUP BY 1;

-- binary
SELECT unhex(substring(hash, 3)) AS bytes, base64(unhex(substring(hash, 3))) AS b64, X'DEADBEEF' AS magic FROM blocks;

-- arrays
SELECT tx_hash, array_distinct(topics) AS topics, slice(topics, 1, 2) AS two, array_position(topics, '0x1') AS place,
       element_at(topics, -1) AS last_topic, array_union(topics, array(address)) AS more, flatten(array(topics, array(data))) AS flat,
       array(1, 2, 3)[0] AS one, arrays_overlap(topics, array('0x1')) AS overlaps, reverse(topics) AS back FROM logs;

-- zipped arrays
SELECT tx_hash, z.topics, z.places
FROM (SELECT tx_hash, explode(arrays_zip(topics, places)) AS z FROM (SELECT tx_hash, topics, sequence(1, 4) AS places FROM logs));

-- reduce
SELECT tx_hash, reduce(topics, 0, (acc, t) -> acc + length(t)) AS letters, zip_with(topics, topics, (a, b) -> a || b) AS twice FROM logs;

-- rounding
SELECT usd, round(usd, 2) AS r, bround(usd, 2) AS b, floor(usd) AS f, ceil(usd, 1) AS c, format_number(usd, 2) AS text, sign(usd - 1) AS s FROM prices;

-- formatted text
SELECT format_string('%s: %.2f (%05d)', token, usd, 7) AS line, printf('%10s|', token) AS padded FROM prices;

-- trimmed text
SELECT trim(LEADING '0' FROM substring(hash, 3)) AS short, trim(BOTH '"' FROM meta) AS m, position('a' IN name) AS at, ltrim(name) AS l
FROM tokens JOIN transactions ON true;

-- nulls
SELECT ifnull(to_address, 'creation') AS receiver, nullif(value, 0) AS not_zero, nvl2(to_address, 1, 0) AS has, isnull(input) AS n,
       coalesce(to_address, from_address) <=> from_address AS same FROM transactions;

-- conditional counts side by side
SELECT to_date(block_timestamp) AS day, sum(if(status = 1, 1, 0)) AS ok, sum(int(status = 0)) AS failed,
       avg(CASE WHEN status = 1 THEN gas_used END) AS gas_of_ok FROM transactions GROUP BY 1;

-- top two of each group by qualify and rank
SELECT token, from_address, sum(value) AS sent FROM transfers GROUP BY token, from_address
QUALIFY rank() OVER (PARTITION BY token ORDER BY sent DESC) <= 2 ORDER BY token, sent DESC;

-- deduplicated logs
SELECT * FROM logs QUALIFY row_number() OVER (PARTITION BY tx_hash, log_index ORDER BY block_number DESC) = 1;

-- latest state of each token
WITH ranked AS (SELECT *, row_number() OVER (PARTITION BY token ORDER BY ts DESC) AS rn FROM prices)
SELECT token, usd FROM ranked WHERE rn = 1;

-- page of results
SELECT * FROM transfers ORDER BY block_number DESC, log_index DESC LIMIT 20 OFFSET 40;

-- sample by hash
SELECT * FROM transfers WHERE abs(hash(tx_hash)) % 100 < 5;

-- long chain of withs
WITH a AS (SELECT token, to_date(block_timestamp) AS day, value FROM transfers),
b AS (SELECT token, day, sum(value) AS volume FROM a GROUP BY token, day),
c AS (SELECT token, day, volume, lag(volume) OVER (PARTITION BY token ORDER BY day) AS before FROM b),
d AS (SELECT token, day, try_divide(volume - before, before) AS change FROM c WHERE before IS NOT NULL),
e AS (SELECT token, avg(change) AS mean, count(*) AS days FROM d GROUP BY token)
SELECT e.token, k.symbol, e.mean FROM e LEFT JOIN tokens k ON k.address = e.token WHERE e.days > 0 ORDER BY e.mean DESC;

-- union of sources with a mark
SELECT 'transfer' AS kind, tx_hash, block_number FROM transfers
UNION ALL SELECT 'swap', tx_hash, block_number FROM swaps
UNION ALL SELECT 'log', tx_hash, block_number FROM logs ORDER BY block_number, kind;

-- places of two kinds
SELECT tx_hash, pool AS place FROM swaps UNION ALL SELECT tx_hash, address FROM logs ORDER BY place, tx_hash;

-- activity of an address from everywhere
SELECT address, min(block_number) AS first_seen, max(block_number) AS last_seen, count(*) AS times FROM (
  SELECT from_address AS address, block_number FROM transfers UNION ALL SELECT to_address, block_number FROM transfers
  UNION ALL SELECT sender, block_number FROM swaps) GROUP BY address ORDER BY times DESC;

-- gas of a method over time
SELECT substr(input, 1, 10) AS method, date_trunc('day', block_timestamp) AS day,
       percentile_approx(gas_used, 0.5) AS median_gas, mode(gas_used) AS usual FROM transactions GROUP BY 1, 2;

-- effective reward per block
SELECT b.number, b.miner, coalesce(sum(t.gas_used * (t.gas_price - b.base_fee_per_gas)), 0) AS tips
FROM blocks b LEFT JOIN transactions t ON t.block_number = b.number AND t.status = 1 GROUP BY b.number, b.miner;

-- comments everywhere
SELECT /* the sender */ from_address, -- who
       count(*) AS n /* how often */ FROM transactions -- all of them
WHERE status = 1 GROUP BY from_address;

-- from first
FROM transfers SELECT token, count(*) AS n GROUP BY token;
