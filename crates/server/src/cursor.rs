//! Cursors: where the next page of a list begins, as a text that says nothing to whoever holds it. Each is bound to the list
//! and the client that it was made for; another client's is refused.

use sha2::{Digest, Sha256};
use tidegate::{EntryId, Tsid};
use tidegate_store::WorkerKey;

use crate::error::{ApiError, Result};

/// Bytes that bind a cursor to its list.
const MARK: usize = 6;
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Which list a cursor belongs to.
#[derive(Debug, Clone, Copy)]
enum List {
    Events = 1,
    Audit = 2,
    Workers = 3,
}

/// The cursor after an event in a list.
pub(crate) fn of_event(client: Option<Tsid>, id: EntryId) -> String {
    write(List::Events, client, &id.get().to_be_bytes())
}

/// The event that a cursor stands at.
pub(crate) fn read_event(text: &str, client: Option<Tsid>) -> Result<EntryId> {
    let place = read(List::Events, client, text)?;
    place.try_into().ok().and_then(|bytes| EntryId::new(i64::from_be_bytes(bytes)).ok()).ok_or_else(unfit)
}

/// The cursor after a row of an event's audit.
pub(crate) fn of_audit(event: EntryId, row: i64) -> String {
    write(List::Audit, Some(Tsid::from_i64(event.get())), &row.to_be_bytes())
}

/// The row of an event's audit that a cursor stands at.
pub(crate) fn read_audit(text: &str, event: EntryId) -> Result<i64> {
    let place = read(List::Audit, Some(Tsid::from_i64(event.get())), text)?;
    place.try_into().map(i64::from_be_bytes).map_err(|_| unfit())
}

/// The cursor after a worker.
pub(crate) fn of_worker(client: Option<Tsid>, of: Option<Tsid>, worker: &str) -> String {
    let mut place = of.map_or(0, Tsid::to_i64).to_be_bytes().to_vec();
    place.extend(worker.as_bytes());
    write(List::Workers, client, &place)
}

/// The worker that a cursor stands at.
pub(crate) fn read_worker(text: &str, client: Option<Tsid>) -> Result<WorkerKey> {
    let place = read(List::Workers, client, text)?;
    let (of, worker) = place.split_first_chunk().ok_or_else(unfit)?;
    let of = Some(i64::from_be_bytes(*of)).filter(|of| *of != 0).map(Tsid::from_i64);
    Ok((of, String::from_utf8(worker.to_vec()).map_err(|_| unfit())?))
}

fn unfit() -> ApiError {
    ApiError::invalid("cursor does not fit: use next_cursor of the page before, in the same list")
}

/// Binds a place to its list. Not a secret: it keeps cursors from being mixed up, and what a list shows is decided by its
/// filters alone.
fn mark(list: List, client: Option<Tsid>, place: &[u8]) -> [u8; MARK] {
    let mut hash = Sha256::new();
    hash.update([list as u8, u8::from(client.is_some())]);
    hash.update(client.map_or(0, Tsid::to_i64).to_be_bytes());
    hash.update(place);
    let mut mark = [0; MARK];
    mark.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
    mark
}

/// The place is written veiled by its mark, so that it does not show, and two cursors of neighbours look nothing alike.
fn write(list: List, client: Option<Tsid>, place: &[u8]) -> String {
    let mark = mark(list, client, place);
    let mut bytes = mark.to_vec();
    bytes.extend(veiled(&mark, place));
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

fn veiled<'a>(mark: &'a [u8; MARK], place: &'a [u8]) -> impl Iterator<Item = u8> + 'a {
    let veil = (0_u8..).flat_map(move |round| Sha256::new().chain_update(mark).chain_update([round]).finalize());
    place.iter().zip(veil).map(|(byte, veil)| byte ^ veil)
}

fn read(list: List, client: Option<Tsid>, text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 5 / 8);
    let (mut held, mut bits) = (0_u32, 0);
    for character in text.bytes() {
        let value = DIGITS.iter().position(|digit| *digit == character).ok_or_else(unfit)?;
        (held, bits) = ((held << 5) | value as u32, bits + 5);
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    let (given, place) = bytes.split_first_chunk::<MARK>().ok_or_else(unfit)?;
    let place: Vec<u8> = veiled(given, place).collect();
    if mark(list, client, &place) == *given { Ok(place) } else { Err(unfit()) }
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
        let event = EntryId::new(5).unwrap();
        assert_eq!(read_audit(&of_audit(event, 99), event).unwrap(), 99);
        assert!(read_audit(&of_audit(event, 99), EntryId::new(6).unwrap()).is_err());
    }
}
