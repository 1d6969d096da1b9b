-- What is said about TASK jobs, which no subscription tells: JSON that the store does not read. Written with the job and
-- removed with it.
CREATE TABLE {ns}.dispatch_tasks (
    job  bigint NOT NULL PRIMARY KEY,
    task text NOT NULL
);
