//! Cursors: where the next page of a list begins, as opaque text. Each is bound to the list and the client that it was
//! made for and refused elsewhere.

use sha2::{Digest, Sha256};
use tidegate::{EntryId, Tsid, WorkerKey};

use crate::error::{ApiError, Result};

/// Bytes of the checksum that binds a cursor to its list.
const CHECKSUM: usize = 6;
/// The longest text that is read as a cursor: positions have some 520 bytes at most.
const MAX_TEXT: usize = 1_024;
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Which list a cursor belongs to.
#[derive(Debug, Clone, Copy)]
enum List {
    Events = 1,
    Audit = 2,
    Workers = 3,
    EventTypes = 4,
    Schemas = 5,
    Clients = 6,
    Subscriptions = 7,
    Facts = 8,
    Pools = 9,
    AppliedSets = 10,
    Accounts = 11,
    Jobs = 12,
    Groups = 13,
}

/// The cursor after an event in a list.
pub(crate) fn of_event(client: Option<Tsid>, id: EntryId) -> String {
    write(List::Events, client, &id.get().to_be_bytes())
}

/// The event that a cursor points to.
pub(crate) fn read_event(text: &str, client: Option<Tsid>) -> Result<EntryId> {
    let position = read(List::Events, client, text)?;
    position.try_into().ok().and_then(|bytes| EntryId::new(i64::from_be_bytes(bytes)).ok()).ok_or_else(invalid)
}

/// The cursor after a row of the audit of the event with this number.
pub(crate) fn of_audit(event: i64, row: i64) -> String {
    write(List::Audit, Some(Tsid::from_i64(event)), &row.to_be_bytes())
}

/// The row of an event's audit that a cursor points to.
pub(crate) fn read_audit(text: &str, event: i64) -> Result<i64> {
    let position = read(List::Audit, Some(Tsid::from_i64(event)), text)?;
    position.try_into().map(i64::from_be_bytes).map_err(|_| invalid())
}

/// The cursor after a worker of the client `of`, in a list that `client` sees.
pub(crate) fn of_worker(client: Option<Tsid>, of: Option<Tsid>, worker: &str) -> String {
    let mut position = of.map_or(0, Tsid::to_i64).to_be_bytes().to_vec();
    position.extend(worker.as_bytes());
    write(List::Workers, client, &position)
}

/// The worker that a cursor points to.
pub(crate) fn read_worker(text: &str, client: Option<Tsid>) -> Result<WorkerKey> {
    let position = read(List::Workers, client, text)?;
    let (of, worker) = position.split_first_chunk().ok_or_else(invalid)?;
    let of = Some(i64::from_be_bytes(*of)).filter(|of| *of != 0).map(Tsid::from_i64);
    Ok((of, String::from_utf8(worker.to_vec()).map_err(|_| invalid())?))
}

/// The cursor after an event type.
pub(crate) fn of_event_type(code: &str) -> String {
    write(List::EventTypes, None, code.as_bytes())
}

/// The code of the event type that a cursor points to.
pub(crate) fn read_event_type(text: &str) -> Result<String> {
    String::from_utf8(read(List::EventTypes, None, text)?).map_err(|_| invalid())
}

/// The cursor after a schema.
pub(crate) fn of_schema(position: &str) -> String {
    write(List::Schemas, None, position.as_bytes())
}

/// The position of the schema that a cursor points to.
pub(crate) fn read_schema(text: &str) -> Result<String> {
    String::from_utf8(read(List::Schemas, None, text)?).map_err(|_| invalid())
}

/// The cursor after a client.
pub(crate) fn of_client(client: Option<Tsid>, code: &str) -> String {
    write(List::Clients, client, code.as_bytes())
}

/// The code of the client that a cursor points to.
pub(crate) fn read_client(text: &str, client: Option<Tsid>) -> Result<String> {
    String::from_utf8(read(List::Clients, client, text)?).map_err(|_| invalid())
}

/// The cursor after a subscription of the client `of`, in a list that `client` sees.
pub(crate) fn of_subscription(client: Option<Tsid>, of: Option<Tsid>, code: &str) -> String {
    write(List::Subscriptions, client, &owned(of, code))
}

/// The client and the code of the subscription that a cursor points to.
pub(crate) fn read_subscription(text: &str, client: Option<Tsid>) -> Result<(Option<Tsid>, String)> {
    read_owned(&read(List::Subscriptions, client, text)?)
}

/// The cursor after a dispatch pool of the client `of`, in a list that `client` sees.
pub(crate) fn of_pool(client: Option<Tsid>, of: Option<Tsid>, code: &str) -> String {
    write(List::Pools, client, &owned(of, code))
}

/// The client and the code of the dispatch pool that a cursor points to.
pub(crate) fn read_pool(text: &str, client: Option<Tsid>) -> Result<(Option<Tsid>, String)> {
    read_owned(&read(List::Pools, client, text)?)
}

/// The cursor after a service account of the client `of`, in a list that `client` sees.
pub(crate) fn of_account(client: Option<Tsid>, of: Option<Tsid>, code: &str) -> String {
    write(List::Accounts, client, &owned(of, code))
}

/// The client and the code of the service account that a cursor points to.
pub(crate) fn read_account(text: &str, client: Option<Tsid>) -> Result<(Option<Tsid>, String)> {
    read_owned(&read(List::Accounts, client, text)?)
}

/// The cursor after an applied set of the client `of`, in a list that `client` sees.
pub(crate) fn of_applied_set(client: Option<Tsid>, of: Option<Tsid>, code: &str) -> String {
    write(List::AppliedSets, client, &owned(of, code))
}

/// The client and the code of the applied set that a cursor points to.
pub(crate) fn read_applied_set(text: &str, client: Option<Tsid>) -> Result<(Option<Tsid>, String)> {
    read_owned(&read(List::AppliedSets, client, text)?)
}

/// The position of what a client has under a code.
fn owned(of: Option<Tsid>, code: &str) -> Vec<u8> {
    let mut position = of.map_or(0, Tsid::to_i64).to_be_bytes().to_vec();
    position.extend(code.as_bytes());
    position
}

fn read_owned(position: &[u8]) -> Result<(Option<Tsid>, String)> {
    let (of, code) = position.split_first_chunk().ok_or_else(invalid)?;
    let of = Some(i64::from_be_bytes(*of)).filter(|of| *of != 0).map(Tsid::from_i64);
    Ok((of, String::from_utf8(code.to_vec()).map_err(|_| invalid())?))
}

/// The cursor after a dispatch job.
pub(crate) fn of_job(client: Option<Tsid>, number: EntryId) -> String {
    write(List::Jobs, client, &number.get().to_be_bytes())
}

/// The dispatch job that a cursor points to.
pub(crate) fn read_job(text: &str, client: Option<Tsid>) -> Result<EntryId> {
    let position = read(List::Jobs, client, text)?;
    position.try_into().ok().and_then(|bytes| EntryId::new(i64::from_be_bytes(bytes)).ok()).ok_or_else(invalid)
}

/// The cursor after a message group of jobs, by the number of its queue.
pub(crate) fn of_group(client: Option<Tsid>, queue: i64, group: &str) -> String {
    let mut position = queue.to_be_bytes().to_vec();
    position.extend(group.as_bytes());
    write(List::Groups, client, &position)
}

/// The message group that a cursor points to.
pub(crate) fn read_group(text: &str, client: Option<Tsid>) -> Result<(i64, String)> {
    let position = read(List::Groups, client, text)?;
    let (queue, group) = position.split_first_chunk().ok_or_else(invalid)?;
    Ok((i64::from_be_bytes(*queue), String::from_utf8(group.to_vec()).map_err(|_| invalid())?))
}

/// The cursor after a fact.
pub(crate) fn of_fact(client: Option<Tsid>, id: Tsid) -> String {
    write(List::Facts, client, &id.to_i64().to_be_bytes())
}

/// The fact that a cursor points to.
pub(crate) fn read_fact(text: &str, client: Option<Tsid>) -> Result<Tsid> {
    let position = read(List::Facts, client, text)?;
    position.try_into().map(|bytes| Tsid::from_i64(i64::from_be_bytes(bytes))).map_err(|_| invalid())
}

fn invalid() -> ApiError {
    ApiError::invalid("cursor is invalid: use the cursor for the next page from the previous page of the same list")
}

/// Binds a position to its list and client. It is not a secret: it keeps cursors from being mixed up. What a list shows
/// is decided by its filters alone.
fn checksum(list: List, client: Option<Tsid>, position: &[u8]) -> [u8; CHECKSUM] {
    let mut hash = Sha256::new();
    hash.update([list as u8, u8::from(client.is_some())]);
    hash.update(client.map_or(0, Tsid::to_i64).to_be_bytes());
    hash.update(position);
    let mut checksum = [0; CHECKSUM];
    checksum.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
    checksum
}

/// The position is masked with a hash of the checksum, so that it cannot be read off and neighbours look unrelated.
fn write(list: List, client: Option<Tsid>, position: &[u8]) -> String {
    let checksum = checksum(list, client, position);
    let mut bytes = checksum.to_vec();
    bytes.extend(masked(&checksum, position));
    let mut text = String::with_capacity(bytes.len() * 8 / 5 + 1);
    let (mut held, mut bits) = (0_u32, 0);
    for byte in bytes {
        (held, bits) = ((held << 8) | u32::from(byte), bits + 8);
        while bits >= 5 {
            bits -= 5;
            text.push(digit(held >> bits));
        }
    }
    if bits > 0 {
        text.push(digit(held << (5 - bits)));
    }
    text
}

fn digit(value: u32) -> char {
    char::from(DIGITS[(value & 31) as usize])
}

fn masked<'a>(checksum: &'a [u8; CHECKSUM], position: &'a [u8]) -> impl Iterator<Item = u8> + 'a {
    let mask =
        (0..=u8::MAX).flat_map(move |round| Sha256::new().chain_update(checksum).chain_update([round]).finalize());
    position.iter().zip(mask).map(|(byte, mask)| byte ^ mask)
}

fn read(list: List, client: Option<Tsid>, text: &str) -> Result<Vec<u8>> {
    if text.len() > MAX_TEXT {
        return Err(invalid());
    }
    let mut bytes = Vec::with_capacity(text.len() * 5 / 8);
    let (mut held, mut bits) = (0_u32, 0);
    for character in text.bytes() {
        let value = DIGITS.iter().position(|digit| *digit == character).ok_or_else(invalid)?;
        (held, bits) = ((held << 5) | value as u32, bits + 5);
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    let (given, position) = bytes.split_first_chunk::<CHECKSUM>().ok_or_else(invalid)?;
    let position: Vec<u8> = masked(given, position).collect();
    if checksum(list, client, &position) == *given { Ok(position) } else { Err(invalid()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_and_show_nothing() {
        let client = Some(Tsid::from_i64(7));
        for raw in [1, 2, 4_711, 9_007_199_254_740_991] {
            let id = EntryId::new(raw).unwrap();
            let text = of_event(client, id);
            assert_eq!(read_event(&text, client).unwrap(), id);
            assert!(!text.contains(&raw.to_string()) || raw < 10, "{text}");
            assert!(read_event(&text, None).is_err(), "another client's");
            assert!(read_event(&text, Some(Tsid::from_i64(8))).is_err(), "another client's");
            assert!(read_worker(&text, client).is_err(), "another list's");
        }
        let long = "w".repeat(255);
        let text = of_worker(None, client, &long);
        assert_eq!(read_worker(&text, None).unwrap(), (client, long));
        assert!(!of_worker(None, client, "secret-host:1").contains("secret"));
        for bad in ["", "1", "12", "../..", "Ü", "00000000000000000000", "9007199254740991"] {
            assert!(read_event(bad, None).is_err(), "{bad}");
        }
        for length in [MAX_TEXT + 1, 20_000] {
            assert!(read_event(&"0".repeat(length), None).is_err(), "{length} digits");
        }
        assert_eq!(read_audit(&of_audit(5, 99), 5).unwrap(), 99);
        assert!(read_audit(&of_audit(5, 99), 6).is_err());
    }
}
