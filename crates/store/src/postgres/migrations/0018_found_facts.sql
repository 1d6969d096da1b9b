-- What facts with a range of numbers are found by; the indexes are in indexes.rs. `targets` says how many entries and jobs were
-- made for such a fact. `terms` are what it is under in fact_terms, 24 bytes each: retention removes those with it.
ALTER TABLE {ns}.events ADD COLUMN IF NOT EXISTS targets integer, ADD COLUMN IF NOT EXISTS terms bytea;
CREATE TABLE IF NOT EXISTS {ns}.fact_terms (
    client_id bigint NOT NULL, -- 0 for none
    event_id  bigint NOT NULL,
    term      bytea NOT NULL,
    PRIMARY KEY (term, client_id, event_id)
);
