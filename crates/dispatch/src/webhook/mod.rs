//! Webhooks: what signs them and sends them. Owns which addresses may be reached, the connections, and what an answer means
//! for a job; must not know jobs, subscriptions or the database. The only part of this crate that speaks HTTP, outwards.

pub mod address;
pub mod client;
pub mod connect;
pub mod credentials;
pub mod mask;
pub mod outcome;
pub mod signature;
pub mod verdict;
