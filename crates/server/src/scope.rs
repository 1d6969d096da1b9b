//! Scopes: what keys and tokens allow.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a caller may do. `manage` includes `read`, `admin` includes everything; `publish` and `consume` see only what
/// they publish and claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Publish events.
    Publish,
    /// Claim events and report on them.
    Consume,
    /// Read events, lists, queues and projections.
    Read,
    /// Manage queues, workers and dead letters.
    Manage,
    /// Everything, including resets and keys.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 5] = [Self::Publish, Self::Consume, Self::Read, Self::Manage, Self::Admin];

    /// The name of the scope, as keys and tokens carry it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Consume => "consume",
            Self::Read => "read",
            Self::Manage => "manage",
            Self::Admin => "admin",
        }
    }
}

impl std::str::FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is not a scope: use publish, consume, read, manage or admin"))
    }
}

/// A set of scopes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// The set of all scopes.
    #[must_use]
    pub fn all() -> Self {
        Scope::ALL.into_iter().collect()
    }

    /// Adds a scope by its name. Other words are ignored.
    pub(crate) fn add(&mut self, word: &str) {
        if let Ok(scope) = word.parse::<Scope>() {
            self.0 |= 1 << scope as u8;
        }
    }

    /// Whether the set contains the scope, or one that includes it.
    #[must_use]
    pub fn allow(self, scope: Scope) -> bool {
        let includes = |other: Scope| self.0 & (1 << other as u8) != 0;
        includes(scope) || includes(Scope::Admin) || (scope == Scope::Read && includes(Scope::Manage))
    }

    /// The scopes in the set.
    #[must_use]
    pub fn list(self) -> Vec<Scope> {
        Scope::ALL.into_iter().filter(|scope| self.0 & (1 << *scope as u8) != 0).collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |set, scope| set | (1 << scope as u8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_include_what_they_say_and_no_more() {
        let admin: Scopes = [Scope::Admin].into_iter().collect();
        let publish: Scopes = [Scope::Publish].into_iter().collect();
        let manage: Scopes = [Scope::Manage].into_iter().collect();
        for scope in Scope::ALL {
            assert!(admin.allow(scope));
            assert_eq!(publish.allow(scope), scope == Scope::Publish);
            assert_eq!(manage.allow(scope), matches!(scope, Scope::Manage | Scope::Read));
        }
        assert_eq!(Scopes::all().list(), Scope::ALL);
    }

    #[test]
    fn words_that_are_no_scopes_add_nothing() {
        let mut scopes = Scopes::default();
        for word in ["openid", "ADMIN", "", "root"] {
            scopes.add(word);
        }
        assert_eq!(scopes, Scopes::default());
        scopes.add("consume");
        assert!(scopes.allow(Scope::Consume));
    }
}
