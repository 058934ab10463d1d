//! Getting in: what a user of the server must be allowed, what is said to one who may not, what a server must promise.

mod acl;
mod full_memory;
mod login;
mod prefixes;
mod server_settings;
mod tls;
