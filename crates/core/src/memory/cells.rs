//! The live events of a queue by number: pages of cells for neighbouring numbers, freed from the front as events
//! end, and a map of the stragglers that would keep a page alone. Knows nothing of what a phase means.

use std::collections::{BTreeMap, VecDeque};

use super::event::Event;

const PAGE_BITS: u32 = 6;
const PAGE: usize = 1 << PAGE_BITS;
/// A page with at most so many events is given up when pages are mostly empty.
const SPARSE: u32 = 16;
/// At most so many pages are left empty after a gap in the numbers.
const MOST_EMPTY: u64 = 1_024;

/// An event in its cell.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) event: Event,
    pub(super) phase: Phase,
    /// The blob with the record that this event is rebuilt from; 0 while there is none.
    pub(super) home: u64,
    pub(super) trouble: Option<Box<Trouble>>,
    pub(super) lane: u32,
    /// The event id's hash.
    pub(super) hash: u32,
    /// The number of its last claim in this epoch.
    pub(super) claim: u32,
    pub(super) retries: u32,
}

// One cache line. With the index and the event's own header a waiting event takes some 100 bytes beyond its contents.
const _: () = assert!(size_of::<Option<Cell>>() == 64);

/// Where a live event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits in its lane for its first claim, before the event with this number; 0 for the last.
    Fresh { next: u64 },
    /// Waits in its lane once more. When its lease expired, its last holder may still end it.
    Back { abandoned: bool },
    /// Waits for a moment, in microseconds.
    Delayed { due: i64 },
    /// Held under this grant.
    Leased { grant: u32 },
}

/// The last failure of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) error: Box<str>,
    /// In microseconds.
    pub(super) at: i64,
}

#[derive(Debug, Default)]
struct Page {
    /// A bit for each cell that has an event.
    live: u64,
    /// As many as have been used so far; empty when the page was given up.
    cells: Vec<Option<Cell>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Cells {
    /// The number of the first page.
    first: u64,
    pages: VecDeque<Page>,
    stragglers: BTreeMap<u64, Cell>,
    len: usize,
    /// Kept so that a queue that is nearly empty does not allocate a page again and again.
    spare: Vec<Option<Cell>>,
}

const fn page_of(number: u64) -> u64 {
    number >> PAGE_BITS
}

const fn place_of(number: u64) -> usize {
    number as usize & (PAGE - 1)
}

impl Cells {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    fn page(&self, number: u64) -> Option<&Page> {
        self.pages.get(usize::try_from(page_of(number).checked_sub(self.first)?).ok()?)
    }

    fn page_mut(&mut self, number: u64) -> Option<&mut Page> {
        self.pages.get_mut(usize::try_from(page_of(number).checked_sub(self.first)?).ok()?)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Cell> {
        let in_page = self.page(number).and_then(|page| page.cells.get(place_of(number))?.as_ref());
        if in_page.is_none() && !self.stragglers.is_empty() { self.stragglers.get(&number) } else { in_page }
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Cell> {
        // Two look-ups in the page, for the borrow checker: the second is in cache.
        if self.page(number).is_some_and(|page| page.live >> place_of(number) & 1 == 1) {
            return self.page_mut(number)?.cells.get_mut(place_of(number))?.as_mut();
        }
        self.stragglers.get_mut(&number)
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.page(number).is_some_and(|page| page.live >> place_of(number) & 1 == 1)
            || self.stragglers.contains_key(&number)
    }

    /// Adds an event, whose number has none yet.
    pub(super) fn insert(&mut self, number: u64, cell: Cell) {
        self.len += 1;
        let page = page_of(number);
        if !self.pages.is_empty() && page > self.first + self.pages.len() as u64 + MOST_EMPTY {
            self.give_up_pages(|_| true);
        }
        if self.pages.is_empty() {
            self.first = page;
        }
        if page < self.first {
            self.stragglers.insert(number, cell);
            return;
        }
        if self.first + self.pages.len() as u64 <= page {
            self.add_pages_through(page);
        }
        let place = place_of(number);
        match self.page_mut(number) {
            Some(page) if page.cells.capacity() > 0 => {
                while page.cells.len() <= place {
                    page.cells.push(None);
                }
                page.live |= 1 << place;
                page.cells[place] = Some(cell);
            }
            // It was given up.
            _ => drop(self.stragglers.insert(number, cell)),
        }
    }

    /// Adds pages, of which only the last gets room: nothing else will come into the others.
    fn add_pages_through(&mut self, page: u64) {
        if let Some(last) = self.pages.back_mut().filter(|last| last.live == 0) {
            let cells = std::mem::take(&mut last.cells);
            self.keep(cells);
        }
        while self.first + (self.pages.len() as u64) < page {
            self.pages.push_back(Page::default());
        }
        let mut cells = std::mem::take(&mut self.spare);
        cells.reserve_exact(PAGE);
        self.pages.push_back(Page { live: 0, cells });
        self.drop_pages_in_front();
    }

    /// Takes an event out.
    pub(super) fn remove(&mut self, number: u64) -> Option<Cell> {
        let place = place_of(number);
        let last = self.first + (self.pages.len() as u64).saturating_sub(1);
        let removed = match self.page_mut(number) {
            Some(page) if page.live >> place & 1 == 1 => {
                page.live &= !(1 << place);
                // The last page may still be filled.
                let is_over = page.live == 0 && (page.cells.len() == PAGE || page_of(number) != last);
                let removed = page.cells.get_mut(place).and_then(Option::take);
                if is_over {
                    let cells = std::mem::take(&mut page.cells);
                    self.keep(cells);
                    self.drop_pages_in_front();
                }
                removed
            }
            _ => self.stragglers.remove(&number),
        };
        self.len -= usize::from(removed.is_some());
        if self.pages.len() > 64 && self.len.saturating_sub(self.stragglers.len()) * 8 < self.pages.len() * PAGE {
            self.give_up_pages(|page| page.live.count_ones() <= SPARSE);
        }
        removed
    }

    fn keep(&mut self, mut cells: Vec<Option<Cell>>) {
        cells.clear();
        self.spare = cells;
    }

    /// Drops pages in front that were given up.
    fn drop_pages_in_front(&mut self) {
        while self.pages.front().is_some_and(|page| page.cells.capacity() == 0) {
            self.pages.pop_front();
            self.first += 1;
        }
        if self.pages.is_empty() {
            self.pages.shrink_to(64);
        }
    }

    /// Moves the events of some pages to the stragglers. Takes time by the number of pages, of which then hardly any are
    /// left, so that each page is paid for once.
    fn give_up_pages(&mut self, which: impl Fn(&Page) -> bool) {
        for (at, page) in self.pages.iter_mut().enumerate().filter(|(_, page)| which(page)) {
            let base = (self.first + at as u64) << PAGE_BITS;
            let cells = std::mem::take(page).cells.into_iter().enumerate();
            let cells = cells.filter_map(|(place, cell)| Some((base + place as u64, cell?)));
            self.stragglers.extend(cells);
        }
        self.drop_pages_in_front();
        self.pages.shrink_to(self.pages.len() * 2);
    }

    /// The lowest number.
    pub(super) fn first(&self) -> Option<u64> {
        let in_pages = self.pages.iter().zip(self.first..).find(|(page, _)| page.live != 0);
        let in_pages = in_pages.map(|(page, at)| (at << PAGE_BITS) + u64::from(page.live.trailing_zeros()));
        let straggler = self.stragglers.keys().next().copied();
        in_pages.into_iter().chain(straggler).min()
    }

    /// The events from this number on, in order.
    pub(super) fn iter_from(&self, number: u64) -> impl Iterator<Item = (u64, &Cell)> {
        let skip = usize::try_from(page_of(number).saturating_sub(self.first)).unwrap_or(usize::MAX);
        let pages = self.pages.iter().enumerate().skip(skip).filter(|(_, page)| page.live != 0);
        let of_pages = pages.flat_map(move |(at, page)| {
            let base = (self.first + at as u64) << PAGE_BITS;
            page.cells.iter().zip(base..).filter_map(|(cell, number)| Some((number, cell.as_ref()?)))
        });
        let mut of_pages = of_pages.skip_while(move |(other, _)| *other < number).peekable();
        let mut stragglers = self.stragglers.range(number..).map(|(number, cell)| (*number, cell)).peekable();
        std::iter::from_fn(move || match (of_pages.peek(), stragglers.peek()) {
            (Some((one, _)), Some((other, _))) if other < one => stragglers.next(),
            (Some(_), _) => of_pages.next(),
            (None, _) => stragglers.next(),
        })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::super::event::EventFields;
    use super::*;

    fn cell(number: u64) -> Cell {
        let payload = RawValue::from_string("1".into()).unwrap();
        let event = Event::new(&EventFields::new(&number.to_string(), "a", &payload), Timestamp::UNIX_EPOCH).unwrap();
        let phase = Phase::Back { abandoned: false };
        Cell { event, phase, home: 0, trouble: None, lane: 0, hash: 0, claim: 0, retries: 0 }
    }

    fn numbers(cells: &Cells, from: u64) -> Vec<u64> {
        cells.iter_from(from).map(|(number, _)| number).collect()
    }

    #[test]
    fn pages_are_freed_from_the_front_and_stragglers_do_not_keep_theirs() {
        let mut cells = Cells::default();
        for number in 1..=100_000 {
            cells.insert(number, cell(number));
            if number > 10 {
                cells.remove(number - 5).unwrap();
            }
        }
        assert_eq!(cells.len(), 10);
        assert!(cells.pages.len() <= 65, "{} pages for one straggler in front", cells.pages.len());
        assert_eq!(numbers(&cells, 0)[..5], [1, 2, 3, 4, 5]);
        assert_eq!((cells.first(), cells.get(3).unwrap().event.event_id()), (Some(1), "3"));
        for number in 1..=5 {
            cells.remove(number).unwrap();
        }
        assert_eq!((cells.first(), cells.stragglers.len()), (Some(99_996), 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Cells are a map, in whatever order numbers come and go.
        #[test]
        fn slots_are_a_map(
            changes in proptest::collection::vec((any::<bool>(), 0_u64..20_000), 0..300),
            growth in proptest::collection::vec((1_u64..2_000, 0_u64..100), 0..20),
        ) {
            let (mut cells, mut map) = (Cells::default(), BTreeMap::new());
            let mut next = 1;
            for (count, kept) in growth {
                for number in next..next + count {
                    cells.insert(number, cell(number));
                    map.insert(number, ());
                }
                next += count;
                while map.len() > kept as usize {
                    let number = *map.keys().nth(map.len() / 2).unwrap();
                    map.remove(&number);
                    prop_assert!(cells.remove(number).is_some());
                }
            }
            for (insert, number) in changes {
                if insert && map.insert(number, ()).is_none() {
                    cells.insert(number, cell(number));
                } else if !insert {
                    prop_assert_eq!(cells.remove(number).is_some(), map.remove(&number).is_some());
                }
                prop_assert_eq!(cells.first(), map.keys().next().copied());
                prop_assert_eq!(cells.contains(number), map.contains_key(&number));
                prop_assert_eq!(cells.get(number).is_some(), cells.get_mut(number).is_some());
            }
            prop_assert_eq!(cells.len(), map.len());
            for from in [0, 1, next / 2, next] {
                let expected: Vec<u64> = map.range(from..).map(|(number, ())| *number).collect();
                prop_assert_eq!(numbers(&cells, from), expected);
            }
        }
    }
}
