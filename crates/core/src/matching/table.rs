//! A hash table whose copies share everything but what was changed since.
//!
//! Entries are in pages of some dozens. A copy is a count; a change copies the list of pages and one page, if another
//! copy has them, and nothing otherwise. A look-up goes through the list of pages to one page and there to one place,
//! however many entries there are: no tree whose depth grows. Callers supply hashes and comparisons, so that the parts of
//! one key are hashed once for many look-ups.

use std::sync::Arc;

/// Entries per page, on average, above which the number of pages doubles.
const PER_PAGE: usize = 32;
/// The smallest page that has entries.
const SMALLEST_PAGE: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    /// None, or a power of two of them.
    pages: Arc<Vec<Arc<Page<K, V>>>>,
    len: usize,
}

/// Open addressing, at most half full: the place of an entry is the first free one from the lowest bits of its hash on.
#[derive(Debug, Clone)]
struct Page<K, V> {
    /// The hash of the entry in the same place, and 0 where there is none. Apart from the entries, so that what is not
    /// there is mostly found out within one cache line.
    hashes: Vec<u64>,
    entries: Vec<Option<(K, V)>>,
    len: usize,
}

impl<K, V> Default for Page<K, V> {
    fn default() -> Self {
        Self { hashes: Vec::new(), entries: Vec::new(), len: 0 }
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { pages: Arc::default(), len: 0 }
    }
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self { pages: Arc::clone(&self.pages), len: self.len }
    }
}

impl<K, V> Page<K, V> {
    fn with_room_for(len: usize) -> Self {
        let room = (len * 2).next_power_of_two().max(SMALLEST_PAGE);
        Self { hashes: vec![0; room], entries: std::iter::repeat_with(|| None).take(room).collect(), len: 0 }
    }

    /// The place of the key or, if it is not here, the free one where it would be; `None` in a page without places.
    fn place(&self, hash: u64, is_key: impl Fn(&K) -> bool) -> Option<usize> {
        let last = self.hashes.len().checked_sub(1)?;
        let first = hash as usize;
        let places = (0..=last).map(|step| first.wrapping_add(step) & last);
        for place in places {
            let there = *self.hashes.get(place)?;
            if there == 0 || there == hash && self.at(place).is_some_and(|(key, _)| is_key(key)) {
                return Some(place);
            }
        }
        None
    }

    fn at(&self, place: usize) -> Option<&(K, V)> {
        self.entries.get(place)?.as_ref()
    }

    fn drain(&mut self) -> impl Iterator<Item = (u64, K, V)> + use<K, V> {
        let Self { hashes, entries, .. } = std::mem::take(self);
        hashes.into_iter().zip(entries).filter_map(|(hash, entry)| entry.map(|(key, value)| (hash, key, value)))
    }
}

impl<K: PartialEq, V> Page<K, V> {
    /// Adds an entry, or replaces that of an equal key.
    fn put(&mut self, hash: u64, key: K, value: V) -> Option<V> {
        if (self.len + 1) * 2 > self.hashes.len() {
            let mut larger = Self::with_room_for(self.len + 1);
            for (hash, key, value) in self.drain() {
                larger.put(hash, key, value);
            }
            *self = larger;
        }
        let place = self.place(hash, |other| *other == key)?;
        *self.hashes.get_mut(place)? = hash;
        let before = self.entries.get_mut(place)?.replace((key, value));
        self.len += usize::from(before.is_none());
        before.map(|(_, value)| value)
    }
}

/// A hash as it is kept: never 0.
#[inline]
fn kept(hash: u64) -> u64 {
    hash.max(1)
}

impl<K, V> Table<K, V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.pages.iter().flat_map(|page| page.entries.iter().flatten()).map(|(_, value)| value)
    }

    pub(super) fn get(&self, hash: u64, is_key: impl Fn(&K) -> bool) -> Option<&V> {
        let hash = kept(hash);
        let page = self.pages.get(page_of(hash, self.pages.len()))?;
        page.at(page.place(hash, is_key)?).map(|(_, value)| value)
    }
}

impl<K: Clone + PartialEq, V: Clone> Table<K, V> {
    /// Adds an entry, or replaces that of an equal key.
    pub(super) fn insert(&mut self, hash: u64, key: K, value: V) -> Option<V> {
        let hash = kept(hash);
        if self.len >= self.pages.len() * PER_PAGE {
            self.repage((self.pages.len() * 2).max(1));
        }
        let before = self.page_mut(hash).and_then(|page| page.put(hash, key, value));
        self.len += usize::from(before.is_none());
        before
    }

    /// The value of an entry, to change it in place.
    pub(super) fn get_mut(&mut self, hash: u64, key: &K) -> Option<&mut V> {
        self.get(hash, |other| other == key)?;
        let hash = kept(hash);
        let page = self.page_mut(hash)?;
        let place = page.place(hash, |other| other == key)?;
        page.entries.get_mut(place)?.as_mut().map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, hash: u64, key: &K) -> Option<V> {
        self.get(hash, |other| other == key)?;
        let hash = kept(hash);
        let page = self.page_mut(hash)?;
        // Open addressing has no holes: what is behind the removed entry may have to move, so the page is written anew.
        let mut smaller = Page::with_room_for(page.len.saturating_sub(1));
        let mut removed = None;
        for (other, found, value) in page.drain() {
            if other == hash && found == *key {
                removed = Some(value);
            } else {
                smaller.put(other, found, value);
            }
        }
        *page = smaller;
        self.len -= usize::from(removed.is_some());
        if self.len == 0 {
            *self = Self::default();
        } else if self.pages.len() > 1 && self.len * 4 < self.pages.len() * PER_PAGE {
            self.repage(self.pages.len() / 2);
        }
        removed
    }

    fn page_mut(&mut self, hash: u64) -> Option<&mut Page<K, V>> {
        let at = page_of(hash, self.pages.len());
        Arc::make_mut(&mut self.pages).get_mut(at).map(Arc::make_mut)
    }

    /// Distributes all entries over so many pages.
    fn repage(&mut self, pages: usize) {
        let room = self.len / pages;
        let mut into: Vec<Page<K, V>> = std::iter::repeat_with(|| Page::with_room_for(room)).take(pages).collect();
        for mut page in std::mem::take(Arc::make_mut(&mut self.pages)) {
            for (hash, key, value) in Arc::make_mut(&mut page).drain() {
                if let Some(page) = into.get_mut(page_of(hash, pages)) {
                    page.put(hash, key, value);
                }
            }
        }
        self.pages = Arc::new(into.into_iter().map(Arc::new).collect());
    }
}

/// The number of the page for a hash. Taken from the upper half, as places within a page are from the lower.
#[inline]
fn page_of(hash: u64, pages: usize) -> usize {
    (hash >> 32) as usize & pages.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn hash(key: u16) -> u64 {
        u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    #[test]
    fn pages_come_and_go_with_entries() {
        let mut table = Table::default();
        for key in 0..4_000 {
            table.insert(hash(key), key, ());
        }
        let sizes = |table: &Table<u16, ()>| -> Vec<_> { table.pages.iter().map(|page| page.hashes.len()).collect() };
        assert_eq!(table.pages.len(), 128);
        assert!(sizes(&table).iter().sum::<usize>() < 8 * table.len(), "{:?}", sizes(&table));
        let copy = table.clone();
        table.insert(hash(4_000), 4_000, ());
        let shared = copy.pages.iter().zip(table.pages.iter()).filter(|(one, other)| Arc::ptr_eq(one, other)).count();
        assert_eq!(shared, 127, "a change copies one page");
        for key in 10..=4_000 {
            table.remove(hash(key), &key);
        }
        assert!(table.len() == 10 && table.pages.len() <= 2, "{:?}", sizes(&table));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

    /// The table is a map, also with few different hashes, and a copy does not follow the changes of another.
    #[test]
    fn the_table_is_a_map(
        changes in proptest::collection::vec((0_u16..200, any::<bool>(), any::<u8>()), 0..400),
        hashes in prop_oneof![Just(1_u64), Just(3), Just(u64::MAX)],
    ) {
        let hash = |key: u16| hash(key) % hashes;
        let (mut table, mut map) = (Table::default(), BTreeMap::new());
        let mut copy = (table.clone(), map.clone());
        for (at, (key, insert, value)) in changes.into_iter().enumerate() {
            if insert {
                prop_assert_eq!(table.insert(hash(key), key, value), map.insert(key, value));
            } else {
                prop_assert_eq!(table.remove(hash(key), &key), map.remove(&key));
            }
            if let Some(found) = table.get_mut(hash(key / 2), &(key / 2)) {
                *found = value;
                map.insert(key / 2, value);
            }
            if at % 64 == 0 {
                copy = (table.clone(), map.clone());
            }
        }
        for (table, map) in [(table, map), copy] {
            prop_assert_eq!(table.len(), map.len());
            prop_assert!((0..200).all(|key| table.get(hash(key), |other| *other == key) == map.get(&key)));
            let mut values: Vec<_> = table.values().copied().collect();
            let mut expected: Vec<_> = map.into_values().collect();
            values.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(values, expected);
        }
    }
    }
}
