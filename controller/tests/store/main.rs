//! The store on a real PostgreSQL.
//!
//! One program, because each test program compiles the store's asynchronous code once more.

#[path = "../http_api/database.rs"]
mod database;
mod kernel_profiles;
mod leases;
mod notifications;
mod retention;
mod rows;
#[allow(dead_code, reason = "the API's tests seed more than these need")]
#[path = "../http_api/seed.rs"]
mod seed;
