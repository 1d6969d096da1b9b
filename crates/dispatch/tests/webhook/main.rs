//! The client that sends webhooks, against receivers on loopback: what it reaches, what it takes, and what it signs.

mod addresses;
mod exchange;
mod hostile;
mod hostile_http2;
mod official;
mod receiver;
