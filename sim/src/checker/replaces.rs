//! Checks contents that replace each other under one key: an acknowledged content is handed out, or was replaced by
//! one that is not older. Pure.

use std::collections::HashMap;

/// One publish under a key. Times are readings of one counter.
#[derive(Debug, Clone)]
pub(crate) struct Offered {
    pub(crate) key: String,
    /// Unique in the run.
    pub(crate) content: String,
    pub(crate) begun: u64,
    /// `None` when the answer is not known.
    pub(crate) answered: Option<u64>,
    /// The entry of the answer.
    pub(crate) entry: Option<i64>,
}

/// One content that was handed out.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) entry: i64,
    pub(crate) content: String,
    pub(crate) at: u64,
}

/// The violations as text.
pub(crate) fn check(offered: &[Offered], taken: &[Taken]) -> Vec<String> {
    let mut wrong = Vec::new();
    let by_content: HashMap<&str, &Offered> = offered.iter().map(|offer| (offer.content.as_str(), offer)).collect();
    let mut by_entry: HashMap<i64, Vec<&Taken>> = HashMap::new();
    let mut seen: HashMap<&str, &Taken> = HashMap::new();
    for one in taken {
        by_entry.entry(one.entry).or_default().push(one);
        match by_content.get(one.content.as_str()) {
            None => wrong.push(format!("{} was handed out, but was never published", one.content)),
            Some(offer) if offer.begun > one.at => {
                wrong.push(format!("{} was handed out before it was published", one.content));
            }
            Some(offer) if offer.entry.is_some_and(|entry| entry != one.entry) => {
                wrong.push(format!("{} is of entry {:?}, handed out as {}", one.content, offer.entry, one.entry));
            }
            Some(_) => {}
        }
        if let Some(other) = seen.insert(&one.content, one) {
            wrong.push(format!("{} was handed out twice: as entry {} and {}", one.content, other.entry, one.entry));
        }
    }
    for offer in offered {
        let Some(entry) = offer.entry else { continue };
        let kept = by_entry.get(&entry).is_some_and(|taken| taken.iter().any(|one| not_older(one, offer, &by_content)));
        if !kept {
            let instead: Vec<&str> =
                by_entry.get(&entry).into_iter().flatten().map(|one| one.content.as_str()).collect();
            wrong.push(format!("{} was acknowledged as entry {entry}, handed out as {instead:?}", offer.content));
        }
    }
    wrong
}

/// Whether the content that was handed out is the offer itself or may have been published after it, under its key.
fn not_older(one: &Taken, offer: &Offered, by_content: &HashMap<&str, &Offered>) -> bool {
    let Some(other) = by_content.get(one.content.as_str()) else { return false };
    other.key == offer.key && (one.content == offer.content || other.answered.is_none_or(|at| at > offer.begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(content: &str, begun: u64, answered: u64, entry: i64) -> Offered {
        let key = content.split('/').next().unwrap_or_default().to_owned();
        Offered { key, content: content.into(), begun, answered: Some(answered), entry: Some(entry) }
    }

    fn take(content: &str, entry: i64, at: u64) -> Taken {
        Taken { entry, content: content.into(), at }
    }

    #[test]
    fn a_later_content_may_replace_an_earlier_one() {
        let offered = [offer("a/1", 1, 2, 7), offer("a/2", 3, 4, 7), offer("a/3", 6, 7, 8)];
        assert_eq!(check(&offered, &[take("a/2", 7, 5), take("a/3", 8, 9)]), Vec::<String>::new());
        // Two concurrent publishes may take effect in either order.
        let offered = [offer("a/1", 1, 4, 7), offer("a/2", 2, 3, 7)];
        assert_eq!(check(&offered, &[take("a/1", 7, 5)]), Vec::<String>::new());
    }

    #[test]
    fn an_acknowledged_content_that_an_older_one_hides_is_found() {
        let offered = [offer("a/1", 1, 2, 7), offer("a/2", 3, 4, 7)];
        assert_eq!(check(&offered, &[take("a/1", 7, 5)]).len(), 1);
        assert_eq!(check(&offered, &[]).len(), 2, "nothing came at all");
        assert_eq!(check(&offered, &[take("b/1", 7, 5)]).len(), 3, "what nobody published came instead");
    }

    #[test]
    fn a_content_comes_once_and_as_its_own_entry() {
        let offered = [offer("a/1", 1, 2, 7)];
        assert_eq!(check(&offered, &[take("a/1", 7, 5), take("a/1", 7, 6)]).len(), 1);
        assert_eq!(check(&offered, &[take("a/1", 8, 5), take("a/1", 7, 6)]).len(), 2);
        assert_eq!(check(&offered, &[take("a/1", 7, 0)]).len(), 1, "before it was published");
    }
}
