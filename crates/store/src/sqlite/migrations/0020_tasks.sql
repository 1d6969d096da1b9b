-- What is said about TASK jobs, which no subscription tells: JSON that the store does not read. Written with the job and
-- removed with it.
CREATE TABLE {ns}_dispatch_tasks (
    job  INTEGER PRIMARY KEY,
    task TEXT NOT NULL
);
