//! The parts of the triggers for publishing by plain SQL: expressions over `NEW` that a `.sql` file names in braces.
//! SQLite has no stored functions, so expressions that several columns share are defined here once.

use crate::sqlite::statements::claim::ROOM;
use crate::values::StoreOptions;

/// SQLite's current time in microseconds, in SQL that old versions of SQLite know too.
pub(in crate::sqlite) const SQL_NOW: &str =
    "(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)";

/// Whether the text `x` contains a NUL, another control character, or bytes that are not UTF-8. Only a text with
/// characters beyond ASCII is walked: SQLite reads invalid UTF-8 as another character, whose bytes differ when written.
const BAD_TEXT: &str = "(instr(x, char(0)) > 0
        OR x GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
        OR (x GLOB '*[^' || char(1) || '-' || char(127) || ']*' AND EXISTS (
            WITH RECURSIVE chars(rest) AS (SELECT x UNION ALL SELECT substr(rest, 2) FROM chars WHERE rest <> '')
            SELECT 1 FROM chars
            WHERE rest <> '' AND CAST(substr(rest, 1, 1) AS BLOB) <> CAST(char(unicode(rest)) AS BLOB))))";

/// The tags without surrounding spaces, empty ones and repeats, separated by commas; null without any. Each step keeps
/// the tag that the step before it cut off.
const TAGS: &str = "(SELECT kept FROM (WITH RECURSIVE split(kept, tag, rest) AS (
            SELECT '', '', NEW.tags || ',,'
            UNION ALL
            SELECT CASE WHEN tag = '' OR instr(',' || kept || ',', ',' || tag || ',') > 0 THEN kept
                        WHEN kept = '' THEN tag ELSE kept || ',' || tag END,
                   trim(substr(rest, 1, instr(rest, ',') - 1), ' ' || char(9, 10, 11, 12, 13, 133, 160, 5760, 8192, 8193, 8194,
                        8195, 8196, 8197, 8198, 8199, 8200, 8201, 8202, 8232, 8233, 8239, 8287, 12288)),
                   substr(rest, instr(rest, ',') + 1)
            FROM split WHERE rest <> '')
        SELECT kept FROM split WHERE rest = ''))";

/// A retry policy in the library's form; null if it is not valid. `NEW.retry` is known to be JSON.
const RETRY: &str = "CASE json_extract(NEW.retry, '$.kind')
        WHEN 'fixed' THEN CASE WHEN json_type(NEW.retry, '$.delay_ms') = 'integer'
                AND json_extract(NEW.retry, '$.delay_ms') BETWEEN 0 AND 3162240000000
            THEN json_object('kind', 'fixed', 'delay_ms', json_extract(NEW.retry, '$.delay_ms')) END
        WHEN 'exponential' THEN CASE WHEN json_type(NEW.retry, '$.base_ms') = 'integer'
                AND json_extract(NEW.retry, '$.base_ms') BETWEEN 0 AND 3162240000000
                AND json_type(NEW.retry, '$.max_ms') = 'integer'
                AND json_extract(NEW.retry, '$.max_ms') BETWEEN 0 AND 3162240000000
                AND coalesce(json_type(NEW.retry, '$.factor'), 'real') IN ('integer', 'real')
                AND abs(coalesce(json_extract(NEW.retry, '$.factor'), 2.0)) <= 1e15
                AND coalesce(json_type(NEW.retry, '$.jitter'), 'real') IN ('integer', 'real')
                AND coalesce(json_extract(NEW.retry, '$.jitter'), 0.25) BETWEEN 0 AND 1
            THEN json_object('kind', 'exponential', 'base_ms', json_extract(NEW.retry, '$.base_ms'),
                             'factor', 0.0 + coalesce(json_extract(NEW.retry, '$.factor'), 2.0),
                             'max_ms', json_extract(NEW.retry, '$.max_ms'),
                             'jitter', 0.0 + coalesce(json_extract(NEW.retry, '$.jitter'), 0.25)) END
        WHEN 'list' THEN CASE WHEN json_type(NEW.retry, '$.delays_ms') = 'array'
                AND json_array_length(NEW.retry, '$.delays_ms') <= 1000
                AND NOT EXISTS (SELECT 1 FROM json_each(NEW.retry, '$.delays_ms')
                                WHERE type <> 'integer' OR value NOT BETWEEN 0 AND 3162240000000)
            THEN json_object('kind', 'list', 'delays_ms', json(json_extract(NEW.retry, '$.delays_ms'))) END
        END";

/// A moment in microseconds since 1970, from an integer or from ISO 8601 text; null if it is neither.
const MOMENT: &str = "CASE typeof({column}) WHEN 'integer' THEN {column}
        WHEN 'text' THEN CASE WHEN {column} GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*'
            THEN CAST(round((julianday({column}) - 2440587.5) * 86400000.0) AS INTEGER) * 1000 END END";

/// Fills in the placeholders of a schema step.
pub(in crate::sqlite) fn fill(sql: &str, options: &StoreOptions) -> String {
    sql.replace("{bad_text}", BAD_TEXT)
        .replace("{tags}", TAGS)
        .replace("{retry}", RETRY)
        .replace("{event_time}", &MOMENT.replace("{column}", "NEW.event_time"))
        .replace("{available_at}", &MOMENT.replace("{column}", "NEW.available_at"))
        .replace("{sql_now}", SQL_NOW)
        .replace("{room}", &ROOM.to_string())
        .replace("{payload_limit}", &options.payload_limit.0.to_string())
        .replace("{ns}", &options.namespace)
}
