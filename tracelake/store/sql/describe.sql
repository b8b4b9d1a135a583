-- The schemas of Trace from the catalogue, for docs/reference/data_model.md. Tables are in the order of creation.

-- name: tables
-- Every table, with its purpose and its storage settings.
SELECT c.oid::regclass::text AS name,
       obj_description(c.oid, 'pg_class') AS purpose,
       c.reloptions AS settings
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p')
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'trace_migrations')
   AND n.nspname !~ '^pg_'
 ORDER BY c.oid;

-- name: columns
-- Every column: its type, whether it may be NULL, its default, and what it means.
SELECT a.attrelid::regclass::text AS table_name,
       a.attname AS name,
       format_type(a.atttypid, a.atttypmod) AS type,
       NOT a.attnotnull AS nullable,
       CASE
           WHEN a.attidentity <> '' THEN 'identity'
           WHEN a.attgenerated <> '' THEN 'always ' || pg_get_expr(d.adbin, d.adrelid, true)
           ELSE pg_get_expr(d.adbin, d.adrelid, true)
       END AS value,
       col_description(a.attrelid, a.attnum) AS meaning
  FROM pg_attribute a
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attnum > 0 AND NOT a.attisdropped
   AND a.attrelid >= 16384 -- lower ones are system tables
 ORDER BY a.attrelid, a.attnum;

-- name: constraints
-- Every constraint but NOT NULL, which the columns show: keys first, then references, then checks.
SELECT k.conrelid::regclass::text AS table_name,
       k.conname AS name,
       pg_get_constraintdef(k.oid, true) AS definition,
       obj_description(k.oid, 'pg_constraint') AS meaning
  FROM pg_constraint k
 WHERE k.conrelid <> 0 AND k.contype IN ('p', 'u', 'x', 'f', 'c')
 ORDER BY k.conrelid, array_position(ARRAY['p', 'u', 'x', 'f', 'c']::"char"[], k.contype), k.conname;

-- name: foreign_keys
-- Every reference from one table to another, without the column of the organisation.
SELECT k.confrelid::regclass::text AS parent,
       k.conrelid::regclass::text AS child,
       string_agg(a.attname, ', ' ORDER BY key.position) FILTER (WHERE a.attname <> 'org_id') AS columns,
       bool_or(NOT a.attnotnull) AS nullable
  FROM pg_constraint k
 CROSS JOIN unnest(k.conkey) WITH ORDINALITY AS key (number, position)
  JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = key.number
 WHERE k.contype = 'f'
 GROUP BY k.oid
 ORDER BY k.conrelid, k.conname;

-- name: indexes
-- Every index that does not belong to a constraint.
SELECT i.indrelid::regclass::text AS table_name,
       c.relname AS name,
       pg_get_indexdef(i.indexrelid, 0, true) AS definition,
       obj_description(i.indexrelid, 'pg_class') AS meaning
  FROM pg_index i
  JOIN pg_class c ON c.oid = i.indexrelid
 WHERE NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.conrelid = i.indrelid)
 ORDER BY i.indrelid, c.relname;

-- name: triggers
-- Every user-defined trigger.
SELECT t.tgrelid::regclass::text AS table_name,
       t.tgname AS name,
       pg_get_triggerdef(t.oid, true) AS definition,
       obj_description(t.oid, 'pg_trigger') AS meaning
  FROM pg_trigger t
 WHERE NOT t.tgisinternal
 ORDER BY t.tgrelid, t.tgname;

-- name: types
-- Every user-defined type: the values of an enum, or the element type of a range.
SELECT t.oid::regtype::text AS name,
       coalesce(
           (SELECT string_agg(e.enumlabel, ' ' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid),
           (SELECT 'range of ' || r.rngsubtype::regtype FROM pg_range r WHERE r.rngtypid = t.oid)
       ) AS contents,
       obj_description(t.oid, 'pg_type') AS meaning
  FROM pg_type t
  JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE t.typtype IN ('e', 'r') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
 ORDER BY t.oid;

-- name: functions
-- Every user-defined function, without those of range types.
SELECT p.oid::regprocedure::text AS name,
       pg_get_function_result(p.oid) AS result,
       obj_description(p.oid, 'pg_proc') AS meaning
  FROM pg_proc p
  JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'i')
 ORDER BY p.oid;
