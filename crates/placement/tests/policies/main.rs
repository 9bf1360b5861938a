//! Tests of the policies: worked examples from the papers, single rules, and properties.

mod arbitrary;
mod auto_share;
mod build;
mod colocation;
mod exclusive;
mod feasibility;
mod gangs;
mod hardware;
mod live;
mod operator;
mod parts;
mod places;
mod power;
mod preemption;
mod properties;
mod record;
mod scheme_b;
mod sharing;
mod static_layout;
mod stay;
mod tessera;
mod view;
