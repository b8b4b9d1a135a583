"""Which functions the SQL gate knows, by Spark's names. What is not named here is not run.

Each was chosen because its result follows from its arguments alone: nothing here reads a file, a setting, the
environment or a class of Java, nor reveals anything about the machine or the session.
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


AGGREGATES: Final = _words("""
    any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor bool_and bool_or
    collect_list collect_set corr count count_if covar_pop covar_samp every first first_value grouping grouping_id
    kurtosis last last_value listagg max max_by mean median min min_by mode percentile percentile_approx
    percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy
    regr_syy skewness some std stddev stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop var_samp variance
""")

WINDOWS: Final = _words("cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number")

GENERATORS: Final = _words("explode explode_outer inline inline_outer posexplode posexplode_outer stack")
"""Several rows from one: in the SELECT list or in a LATERAL VIEW."""

NUMBERS: Final = _words("""
    abs acos acosh asin asinh atan atan2 atanh bin bit_count bit_get bround cbrt ceil ceiling conv cos cosh cot csc
    degrees e exp expm1 factorial floor getbit greatest hypot least ln log log10 log1p log2 mod negative pi pmod
    positive pow power radians rint round sec shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt tan tanh
    try_add try_divide try_mod try_multiply try_subtract width_bucket
""")

TEXTS: Final = _words("""
    ascii base64 bit_length btrim char char_length character_length chr concat concat_ws contains crc32 decode elt
    encode endswith find_in_set format_number format_string hash hex initcap instr lcase left len length levenshtein
    locate lower lpad ltrim luhn_check mask md5 octet_length overlay position printf regexp_count regexp_extract
    regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rpad rtrim
    sha sha1 sha2 soundex space split split_part startswith substr substring substring_index to_binary to_char
    to_number translate trim try_to_binary try_to_number ucase unbase64 unhex upper xxhash64
""")

TIMES: Final = _words("""
    add_months convert_timezone date date_add date_diff date_format date_from_unix_date date_part date_sub
    date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear from_unixtime from_utc_timestamp
    hour last_day make_date make_dt_interval make_interval make_timestamp make_timestamp_ntz make_ym_interval minute
    month monthname months_between next_day quarter second session_window timestamp timestamp_micros
    timestamp_millis timestamp_seconds timestampadd timestampdiff to_date to_timestamp to_timestamp_ntz
    to_unix_timestamp to_utc_timestamp trunc try_to_date try_to_timestamp unix_date unix_micros unix_millis
    unix_seconds weekday weekofyear window window_time year
""")

SHAPES: Final = _words("""
    aggregate array array_append array_compact array_contains array_distinct array_except array_insert array_intersect
    array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort
    array_union arrays_overlap arrays_zip cardinality element_at exists filter flatten forall get map map_concat
    map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with
    named_struct reduce sequence size slice sort_array str_to_map struct transform transform_keys transform_values
    try_element_at zip_with
""")

TYPES: Final = _words("""
    bigint binary boolean decimal double float int smallint string tinyint typeof
""")

CHOICES: Final = _words("""
    coalesce equal_null if ifnull isnan isnotnull isnull nanvl nullif nullifzero nvl nvl2 zeroifnull
""")

JSON: Final = _words("""
    from_csv from_json get_json_object json_array_length json_object_keys parse_json to_csv to_json try_parse_json
    try_variant_get variant_get is_variant_null schema_of_json
""")

FUNCTIONS: Final = AGGREGATES | WINDOWS | GENERATORS | NUMBERS | TEXTS | TIMES | SHAPES | TYPES | CHOICES | JSON

CLOCKS_AND_CHANCE: Final = _words("""
    curdate current_date current_time current_timestamp localtimestamp now rand randn random randstr shuffle uniform
    unix_timestamp uuid
""")
"""Another result each time: for queries only, never for stored data. (`unix_timestamp()` is the clock.)"""

CLOCK_WORDS: Final = ("now", "today", "yesterday", "tomorrow")
"""Texts that Spark takes for a time of its own clock, where it makes a time of a text."""

CLOCK_COLUMNS: Final = _words("current_date current_time current_timestamp localtimestamp")
"""Those of the clocks that may be written without parentheses, where no column has this name."""

JOIN_HINTS: Final = _words("""
    broadcast broadcastjoin mapjoin merge mergejoin shuffle_hash shuffle_merge shuffle_replicate_nl
""")
"""Hints that choose how tables are joined, and nothing else."""

UNIT_FIRST: Final = _words("date_add date_diff dateadd datediff timestampadd timestampdiff")
"""Functions of three arguments, the first of them the name of a unit."""

SESSION_WORDS: Final = _words("""
    current_date current_time current_timestamp current_user localtimestamp session_user user
""")
"""Where no column has this name, Spark takes it for a function."""
