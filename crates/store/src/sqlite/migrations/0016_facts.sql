-- Facts on their own: the numbers of the entries and jobs that refer to a fact lie from first_number to last_number
-- (none if last_number is less). Null for a fact of exactly one entry, such as every published one: it goes with that entry.
ALTER TABLE {ns}_events ADD COLUMN first_number INTEGER;
ALTER TABLE {ns}_events ADD COLUMN last_number INTEGER;
-- What retention walks along.
CREATE INDEX {ns}_events_first_number ON {ns}_events (first_number) WHERE first_number IS NOT NULL;
