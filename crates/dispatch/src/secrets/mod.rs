//! Secrets at rest: the keys that encrypt them, where these come from, and the form in which a resource holds a secret.
//! See ADR 16.
//!
//! It must not know what the secrets are, nor who asks for them.

mod key;
mod key_file;
mod keys;
mod sealed;

pub use key::{InvalidKey, KeyId, SecretKey};
pub use key_file::{add_key, write_new_key};
pub use keys::SecretOptions;
pub(crate) use keys::{SecretKeys, Unreadable};
pub(crate) use sealed::{Place, key_of};
