//! Access to the server: required rights, errors of rejected clients, and required server settings.

mod acl;
mod full_memory;
mod login;
mod prefixes;
mod server_settings;
mod tls;
