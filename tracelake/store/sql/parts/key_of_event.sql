           -- What tells the task for an event (`e`) from other tasks of the same job.
           CASE e.kind
               WHEN 'cursor' THEN concat_ws(':', 'cursor', e.dataset_uuid, e.dataset_version, e.cursor_value)
               WHEN 'partition' THEN concat_ws(':', 'partition', e.dataset_uuid, e.dataset_version, e.partition_key)
               ELSE concat_ws(':', 'whole', e.dataset_uuid, e.dataset_version)
           END
           -- The same partition again is another unit of work when another commit made it so (S9).
           -- By key and by range, each by its own index: together, no index fits, and all partitions would be read.
           || CASE WHEN e.commit_number IS NOT NULL AND (e.kind = 'update' OR EXISTS (
                   SELECT FROM partition_versions p
                    WHERE p.dataset_version = e.dataset_version AND p.partition_key = e.partition_key
                      AND p.valid_from < e.commit_number)
               OR EXISTS (
                   SELECT FROM partition_versions p
                    WHERE p.block_range IS NOT NULL AND p.block_range && e.block_range
                      AND uuid_span(p.dataset_version, p.dataset_version, '[]')
                          && uuid_span(e.dataset_version, e.dataset_version, '[]')
                      AND p.valid_from < e.commit_number))
                   THEN ':commit:' || e.commit_number ELSE '' END
