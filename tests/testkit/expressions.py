"""Expressions to try: ordinary ones, and attempts to get out of one."""

from __future__ import annotations

CONDITIONS = (
    "1 = 1",
    "true",
    "severity <= 4",
    "Severity > 4",
    "not (severity is null and app <> 'su')",
    "app in ('su', 'x')",
    "app not in ('su')",
    "seq >= 1 and seq < 2 or replayed",
    "attrs['parse_error'] is null",
    "attrs.source = 'syslog' and attrs['nothing'] is null",
    "facility > severity + 1",
    "severity <= '4'",
    "severity < 4.5",
    "severity in (1, null)",
    "app like 's%'",
    "app ilike 'S_%'",
    "app not like 's%' and not app ilike 'x%'",
    "app not ilike 'S_%' or app not rlike '^s'",
    "severity <=> null",
    "severity not between 1 and 3",
    "length(body) > 4",
    "body = 'junk'",
    "ts > timestamp'2020-01-01'",
    "to_date(ts) = date'2020-01-01'",
    "app = null",
    "cast(cast(body AS string) AS int) > 1",
    "try_cast(app as decimal(10, 2)) = 3",
    "app rlike r'^a.*\\d$'",
    "regexp_replace(app, '(a)', '$1b') = 'x'",
    "lower(cast(body as string)) like '%err%'",
    "case when app = 'x' then true else false end",
    "case app when 'x' then replayed end",
    "if(app = 'x', replayed, not replayed)",
    "substring(app, 1, 2) = 'x' and left(app, 2) = 'a' and position('a', app) > 0",
    "coalesce(app, host, 'none') = \"x\"",
    "hour(ts) between 8 and 17",
    "date_format(ts, 'yyyy-MM-dd HH:mm') = '2020-01-01 00:00'",
    "array_contains(split(app, ','), 'x') and map_keys(attrs)[0] = 'a'",
    "-seq % 2 = 0 and replayed is not true",
    "get_json_object(message, '$.a') = '1'",
    "parse_url(message, 'HOST') = 'x'",
    "`app` = 'x'",
)

_DEEP = "(" * 41 + "1" + ")" * 41 + " = 1"

ATTEMPTS = (
    (
        "a file",
        "(SELECT concat_ws('|', collect_list(value)) FROM text.`/s.log`) = ''",
        "not allowed",
    ),
    ("a file", "EXISTS (SELECT 1 FROM csv.`/etc/passwd`)", "not allowed"),
    ("a file", "app IN (SELECT value FROM text.`/etc/passwd`)", "not allowed"),
    ("a file", "read_files('/etc/passwd') IS NULL", "read_files is not allowed"),
    ("a file's name", "input_file_name() = ''", "input_file_name is not allowed"),
    ("reflection", "java_method('java.lang.System', 'getenv', 'PATH') = ''", "not allowed"),
    ("reflection", "java_method('java.lang.System','exit',3) IS NULL", "not allowed"),
    ("reflection", "reflect('java.lang.System', 'exit', 3) IS NULL", "not allowed"),
    ("reflection", "try_reflect('java.lang.System', 'exit', 3) IS NULL", "not allowed"),
    ("reflection", "`java_method`('java.lang.System', 'exit', 3) IS NULL", "not allowed"),
    (
        "reflection",
        "system.builtin.java_method('java.lang.System','exit',3) IS NULL",
        "not allowed",
    ),
    ("reflection", "identifier('java_' || 'method')('java.lang.System') IS NULL", "not"),
    ("a setting", "app = '' AND ${env:PATH} = ''", "${ is not allowed"),
    ("a setting", "$name = ''", "$ is not allowed"),
    ("a setting in a text", "app = '${env:PATH}'", "${ is not allowed"),
    ("a setting", "current_user() = 'root'", "not allowed"),
    ("a setting", "current_catalog() = '' OR version() = ''", "not allowed"),
    ("a variable", "@secret = 1", "@ is not allowed"),
    ("a UDF", "my_udf(app) = ''", "the function my_udf is not allowed"),
    ("a UDF", "default.my_udf(app) = ''", "not allowed"),
    ("a hint", "/*+ BROADCAST(a) */ 1 = 1", "comments and hints are not allowed"),
    ("a comment", "1 = 1 -- ' OR java_method('a', 'b')", "comments and hints are not allowed"),
    ("a second statement", "1 = 1; DROP TABLE x", "; is not allowed"),
    ("a table function", "explode(split(app, ',')) = ''", "explode is not allowed"),
    ("an aggregate", "collect_list(app) IS NULL", "collect_list is not allowed"),
    ("an aggregate", "count(*) > 1", "count is not allowed"),
    ("a window", "upper(app) OVER (ORDER BY ts) = ''", "not allowed"),
    ("a lambda", "transform(map_keys(attrs), x -> x) IS NULL", "-> is not allowed"),
    ("the clock", "current_timestamp() > ts", "current_timestamp is not allowed"),
    ("chance", "rand() < 0.5", "rand is not allowed"),
    ("deep nesting", _DEEP, "nested deeper than 40"),
    ("deep nesting", "1" + " + 1" * 1000 + " = 1", "nested deeper than 40"),
    ("deep nesting", "not " * 2000 + "true", "nested deeper than 40"),
    ("deep nesting", "- " * 4000 + "1 = 1", "nested deeper than 40"),
    ("deep nesting", "case when " * 300 + "true" + " then true end" * 300, "nested deeper than 40"),
    ("a long text", "app = '" + "x" * 9000 + "'", "at most 8192 characters"),
    ("a regular expression", "app rlike '(a+)+$'", "may take for ever"),
    ("a regular expression", "regexp_replace(app, '(a|a)*b', '') = ''", "may take for ever"),
    ("a regular expression", "regexp_like(app, host)", "has to be a constant"),
    ("a regular expression", "app rlike concat('(a+', ')+')", "constant pattern"),
    ("a huge result", "repeat(app, 1000000000) = ''", "repeat is not allowed"),
    ("a huge result", "space(2147483647) = ''", "space is not allowed"),
    ("a huge result", "sequence(1, 1000000000) IS NULL", "sequence is not allowed"),
    ("a huge result", "array_repeat(app, 1000000000) IS NULL", "array_repeat is not allowed"),
    ("a huge result", "format_string('%1000000000s', app) = ''", "format_string is not allowed"),
    ("a huge result", "lpad(app, 2000000000, 'x') = ''", "expected a number from 0 to 1000"),
    ("a huge result", "replace(app, 'a', app) = ''", "has to be a constant"),
    ("a huge result", "replace(app, 'a', '" + "x" * 200 + "') = ''", "201 times the size"),
    ("a huge result", f"concat({', '.join(['message'] * 101)}) = ''", "101 times the size"),
)
"""Target of the attack, the condition, and a part of the error message."""


STATEMENTS = (
    "SELECT * FROM events",
    "SELECT e.*, a.team FROM events e LEFT JOIN apps a ON e.app = a.app",
    "SELECT * FROM events JOIN apps USING (app)",
    "SELECT app, count(*) AS n, sum(severity) AS s, max(ts) AS last, count(DISTINCT host) "
    "AS hosts, percentile_approx(severity, 0.95) AS p FROM events GROUP BY app HAVING n > "
    "2 AND count(*) < 10",
    "WITH t (who, what) AS (SELECT host, app FROM events WHERE severity < 3), u AS (SELECT "
    "* FROM t) SELECT u.who, a.team FROM u JOIN apps AS a ON lower(u.what) = a.app AND "
    "a.rank > 1",
    "SELECT e.seq, row_number() OVER (PARTITION BY host ORDER BY ts DESC) AS r, lag(ts) "
    "OVER (PARTITION BY host ORDER BY seq) AS before, avg(severity) OVER (ORDER BY seq "
    "ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS a FROM events e",
    "SELECT seq FROM events WHERE app IN (SELECT app FROM apps WHERE rank = 1) AND NOT "
    "EXISTS (SELECT rack FROM hosts WHERE rack = 7)",
    "SELECT host FROM events UNION ALL SELECT host FROM hosts",
    "SELECT DISTINCT host FROM events EXCEPT SELECT host FROM hosts",
    "SELECT e.attrs['source'] AS source, e.attrs.peer AS peer, attrs.peer AS p2 FROM events e",
    "SELECT q.n FROM (SELECT host, count(*) AS n FROM events GROUP BY 1) q ORDER BY n DESC "
    "LIMIT 10",
    "SELECT e.app, e.__journal, e.__seq, e.__split FROM events e",
    "SELECT e.host, h.rack, a.team FROM events e LEFT JOIN hosts h ON e.host = h.host LEFT "
    "OUTER JOIN apps a ON a.app = e.app AND a.rank = h.rack",
    "SELECT e.* FROM events e LEFT ANTI JOIN apps a ON e.app = a.app",
    "(SELECT host FROM events) UNION (SELECT host FROM events)",
    "SELECT CASE WHEN max(severity) > 3 THEN 'bad' ELSE 'good' END AS x, upper(min(host)) "
    "AS h FROM events",
)
"""Statements over events after ``parse`` of syslog, and the tables TABLES."""

TABLES = {
    "apps": "app STRING, team STRING, pager STRING, rank INT",
    "hosts": "host STRING, rack INT",
}

STATEMENT_ATTEMPTS = (
    ("SELECT e.seq FROM events e OUTER JOIN apps a ON e.app = a.app", "this join is not supported"),
    ("SELECT a.app FROM events e RIGHT SEMI JOIN apps a ON e.app = a.app", "this join is not"),
    ("SELECT seq FROM events LIMIT 5 PERCENT", "not allowed in statements: limit_options"),
    ("SELECT 1 AS x", "expected FROM"),
    ("SELECT 1 AS x FROM apps", "expected a statement over the table events"),
    ("SELECT * FROM other", "there is no table other; known here: apps, ho"),
    ("SELECT * FROM events e, apps a", "this join is not supported:  CROSS; compare b"),
    ("SELECT * FROM events CROSS JOIN apps", "this join is not supported:  CROSS; compare b"),
    (
        "SELECT e.seq FROM events e JOIN apps a ON a.rank > 1",
        "ON has to compare a column of a by = with one",
    ),
    (
        "SELECT e.seq FROM events e JOIN apps a ON true",
        "ON has to compare a column of a by = with one",
    ),
    (
        "SELECT e.seq FROM events e JOIN apps a ON e.app = a.app OR e.host = a.team",
        "ON has to compare a column of a by = with one",
    ),
    (
        "SELECT e.seq FROM events e NATURAL JOIN apps a",
        "not allowed in statements: method in NATURAL ",
    ),
    ("SELECT * FROM parquet.`/etc/x`", "not allowed in statements: db in parquet.`/et"),
    ("SELECT * FROM range(1000000000)", "not allowed in statements: RANGE(1000000000)"),
    ("SELECT * FROM text.`/etc/passwd` e", "not allowed in statements: db in text.`/etc/p"),
    (
        "SELECT explode(map_keys(attrs)) AS k FROM events",
        "the function explode is not allowed; did you ",
    ),
    (
        "SELECT seq FROM events LATERAL VIEW explode(map_keys(attrs)) t AS k",
        "not allowed in statements: laterals in SELECT",
    ),
    ("SELECT collect_list(body) AS x FROM events", "the function collect_list is not allowed"),
    ("INSERT INTO x SELECT * FROM events", "expected one SELECT, perhaps with WITH before"),
    ("DROP TABLE events", "expected one SELECT, perhaps with WITH before"),
    ("SET spark.x=1", "expected one SELECT, perhaps with WITH before"),
    ("SELECT * FROM events; SELECT * FROM events", "; is not allowed in expressions"),
    ("CREATE TABLE t AS SELECT * FROM events", "expected one SELECT, perhaps with WITH before"),
    ("EXPLAIN SELECT * FROM events", "expected one SELECT, perhaps with WITH before"),
    ("DESCRIBE events", "expected one SELECT, perhaps with WITH before"),
    (
        "SELECT * FROM events TABLESAMPLE (1 PERCENT)",
        "not allowed in statements: sample in events T",
    ),
    (
        "SELECT * FROM events PIVOT (count(*) FOR app IN ('a'))",
        "not allowed in statements: pivots in events P",
    ),
    ("SELECT count(*) FROM events", "COUNT(*) needs a name: COUNT(*) AS name"),
    (
        "SELECT app, count(*) AS n FROM events GROUP BY app WITH CUBE",
        "not allowed in statements: cube in GROUP BY a",
    ),
    (
        "SELECT app, count(*) AS n FROM events GROUP BY GROUPING SETS ((app),())",
        "GROUPING SETS is not allowed in expressions",
    ),
    ("SELECT seq FROM events ORDER BY seq", "events have no order after a statement: remov"),
    ("SELECT seq FROM events DISTRIBUTE BY seq", "DISTRIBUTE BY is not allowed in expressions"),
    ("SELECT seq FROM events SORT BY seq", "SORT BY is not allowed in expressions"),
    (
        "SELECT sum(severity) OVER (ORDER BY seq ROWS BETWEEN CURRENT ROW AND UNBOUNDED "
        "FOLLOWING) AS s FROM events",
        "expected a window from UNBOUNDED PRECEDING to",
    ),
    (
        "SELECT sum(severity) OVER (ORDER BY seq ROWS BETWEEN 1000000 PRECEDING AND "
        "CURRENT ROW) AS s FROM events",
        "expected a window from UNBOUNDED PRECEDING to",
    ),
    (
        "SELECT sum(severity) OVER (ORDER BY seq RANGE BETWEEN 10 PRECEDING AND CURRENT "
        "ROW) AS s FROM events",
        "expected a window from UNBOUNDED PRECEDING to",
    ),
    (
        "SELECT (SELECT max(rank) FROM apps) AS x FROM events",
        "not allowed in expressions: (SELECT MAX(rank)",
    ),
    (
        "WITH RECURSIVE t AS (SELECT seq FROM events UNION ALL SELECT seq + 1 FROM t) "
        "SELECT * FROM t",
        "not allowed in statements: recursive in WITH ",
    ),
    (
        "SELECT app FROM events e JOIN apps a ON e.app = a.app",
        "app is a column of several tables: name the t",
    ),
    (
        "SELECT * FROM events e JOIN apps a ON e.app = a.app",
        "two columns are called app: give one another ",
    ),
    ("SELECT e.nonsense FROM events e", "there is no column e.nonsense"),
    ("SELECT x.seq FROM events e", 'there is no column "x"; known here: body, ts,'),
    ("SELECT seq FROM events WHERE count(*) > 1", "count is not allowed here: it aggregates many"),
    (
        "SELECT seq FROM events WHERE row_number() OVER (ORDER BY seq) = 1",
        "OVER is not allowed here: ROW_NUMBER() OVER (ORDER BY",
    ),
    (
        "SELECT seq FROM events WHERE app IN (SELECT a.app FROM apps a WHERE a.team = host)",
        'there is no column "host"; known here: app, t',
    ),
    (
        "SELECT java_method('java.lang.System','exit',1) AS x FROM events",
        "the function java_method is not allowed",
    ),
    ("SELECT '${env:X}' AS x FROM events", "${ is not allowed in expressions: Spark would"),
    (
        "SELECT /*+ BROADCAST(e) */ seq FROM events e",
        "comments and hints are not allowed in express",
    ),
    ("SELECT seq FROM events -- x", "comments and hints are not allowed in express"),
    ("SELECT seq FROM events LIMIT 10000000000000000000000", "expected a number after LIMIT"),
    ("FROM events SELECT seq", "expected one SELECT, perhaps with WITH before"),
    ("FROM events |> SELECT seq", "expected one SELECT, perhaps with WITH before"),
    ("VALUES (1)", "expected one SELECT, perhaps with WITH before"),
    ("TABLE events", "expected one SELECT, perhaps with WITH before"),
    ("SELECT seq FROM events FOR VERSION AS OF 1", "not allowed in statements: version in events "),
    (
        "SELECT * FROM events e JOIN LATERAL (SELECT 1) x ON true",
        "not allowed in statements: LATERAL (SELECT 1)",
    ),
    (
        "SELECT sum(severity) FILTER (WHERE seq > 1) AS x FROM events",
        "not allowed in expressions: SUM(severity) FIL",
    ),
    ("SELECT first(seq) AS x FROM events", "the function first is not allowed; did you me"),
    ("SELECT seq FROM identifier('events')", "not allowed in statements: IDENTIFIER('events"),
    (
        "SELECT transform(split(app,','), x -> x) AS y FROM events",
        "-> is not allowed in expressions",
    ),
    ("SELECT TRANSFORM(seq) USING 'cat' FROM events", "not a statement in Spark SQL near USING"),
    (
        "SELECT min(DISTINCT max(seq)) AS m FROM events",
        "max is not allowed here: it aggregates many r",
    ),
    (
        "SELECT sum(count(*)) OVER () AS n FROM events GROUP BY host",
        "count is not allowed here: it aggregates many",
    ),
    ("SELECT rank() AS r FROM events", "rank needs OVER (...)"),
    (
        "SELECT seq AS Seq, severity AS seq FROM events",
        "two columns are called seq: give one another ",
    ),
    ("SELECT * EXCEPT (body) FROM events", "not allowed in statements: except in * EXCEPT"),
    (
        "SELECT current_timestamp() AS x FROM events",
        "the function current_timestamp is not allowed",
    ),
    ("SELECT rand() AS x FROM events", "the function rand is not allowed; did you mea"),
    ("SELECT seq FROM default.events", "not allowed in statements: db in default.even"),
    ("SELECT seq FROM events e (a)", "not allowed in statements: columns in e(a)"),
    ("SELECT NULL AS n FROM events", "NULL has no type: CAST it"),
    (
        "SELECT u.seq FROM events u JOIN events v ON u.seq = u.seq",
        "ON has to compare a column of v by = with one",
    ),
    ("SELECT seq FROM events WHERE severity", "expected a boolean, but severity is a integer"),
    (
        "SELECT seq FROM events UNION SELECT seq, host FROM events",
        "both sides of UNION need equally many columns",
    ),
    (
        "SELECT host FROM events INTERSECT SELECT seq FROM events",
        "expected values of one kind, not string and i",
    ),
)
"""Statement and a part of its error message."""
