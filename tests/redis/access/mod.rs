//! Getting in: what a user of the server must be allowed, what is said to one who may not, what a server must promise.

mod full;
mod login;
mod neighbours;
mod promises;
mod rights;
mod tls;
