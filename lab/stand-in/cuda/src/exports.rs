//! The driver's functions, by what they are about.

mod contexts;
mod copies;
mod devices;
mod events;
mod graphs;
mod images;
mod launches;
mod libraries;
mod memory;
mod streams;
mod system;
