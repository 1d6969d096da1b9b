//! What keeps a store running: the heartbeat, leases after an outage, the election of one process, expired keys.

use crate::postgres::engine::row::{Moment, row};
use crate::sql::{Only, statements};

row! {
    /// The last heartbeat, and the database's clock.
    pub(in crate::postgres) struct BeatRow {
        at: Moment,
        now: Moment = "clock_timestamp()",
    }
}

row! {
    /// An entry whose lease was started over.
    pub(in crate::postgres) struct ShiftedRow {
        id: i64,
        flags: Option<i16>,
    }
}

statements! {
    /// Statements about the heartbeat, elections and expired keys.
    pub(in crate::postgres) struct Heartbeat {
        /// The last heartbeat (one row).
        last: BeatRow = "SELECT {columns} FROM {ns}.heartbeat";
        /// The same, locked.
        lock: BeatRow = "SELECT {columns} FROM {ns}.heartbeat FOR UPDATE";
        /// Writes the heartbeat (one row).
        beat = "UPDATE {ns}.heartbeat SET at = $1";
        /// Changes no row, but fails where nothing can be written.
        probe = "UPDATE {ns}.heartbeat SET at = at WHERE false";
        /// After an outage: moves leases that were still held when the store was last known to work (walks over
        /// event_queue).
        shift_leases = "
            UPDATE {live}
            SET lease_until = lease_until + ($1::timestamptz - $2::timestamptz), updated_at = $1::timestamptz
            WHERE lease_until > $2::timestamptz";
        /// After the clock went back: starts leases over that were written while it was ahead, that is, whose
        /// `updated_at` is in the future (walks over event_queue). A lease that was written before ends in time without
        /// a change.
        shift_leases_back: ShiftedRow = "
            UPDATE {live}
            SET lease_until = $1::timestamptz + (lease_until - updated_at), updated_at = $1::timestamptz
            WHERE lease_until IS NOT NULL AND updated_at > clock_timestamp()
            RETURNING {columns}";
        /// Takes or extends the lease of a task (maintenance's primary key).
        elect = "
            INSERT INTO {ns}.maintenance AS m (task, holder, until)
            VALUES ($2::text, $3::text, {now} + $4::bigint * interval '1 microsecond')
            ON CONFLICT (task) DO UPDATE SET holder = excluded.holder, until = excluded.until
                WHERE m.holder = excluded.holder OR m.until <= {now}";
        /// Gives up all tasks of a process (maintenance is small).
        resign = "DELETE FROM {ns}.maintenance WHERE holder = $1::text";
        /// The last entry number that was drawn, which says which partitions are needed (a sequence).
        last_number: Only<i64> = "SELECT last_value FROM {ns}.entry_id";
    }
}
