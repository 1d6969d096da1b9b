-- What facts with a range of numbers are found by. `targets` says how many entries and jobs were made for such a fact. `terms`
-- are what it is under in fact_terms, 24 bytes each: retention removes those with it.
ALTER TABLE {ns}_events ADD COLUMN targets INTEGER;
ALTER TABLE {ns}_events ADD COLUMN terms BLOB;
CREATE TABLE {ns}_fact_terms (
    term      BLOB NOT NULL,
    client_id INTEGER NOT NULL, -- 0 for none
    event_id  INTEGER NOT NULL,
    PRIMARY KEY (term, client_id, event_id)
) WITHOUT ROWID;

-- Each ends with the fact's id, as every index does. The client comes before what a client could have very many of.
CREATE INDEX {ns}_events_client ON {ns}_events (client_id) WHERE first_number IS NOT NULL;
CREATE INDEX {ns}_events_type ON {ns}_events (client_id, event_type) WHERE first_number IS NOT NULL;
CREATE INDEX {ns}_events_source ON {ns}_events (source, client_id) WHERE first_number IS NOT NULL AND source IS NOT NULL;
CREATE INDEX {ns}_events_subject ON {ns}_events (subject, client_id) WHERE first_number IS NOT NULL AND subject IS NOT NULL;
CREATE INDEX {ns}_events_external ON {ns}_events (external_id, client_id)
    WHERE first_number IS NOT NULL AND external_id IS NOT NULL;
CREATE INDEX {ns}_events_correlation ON {ns}_events (correlation_id, client_id)
    WHERE first_number IS NOT NULL AND correlation_id IS NOT NULL;
