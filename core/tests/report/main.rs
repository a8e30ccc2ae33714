//! Reports of synthetic jobs: the rules of measuring one by one, whole reports against stored ones, JSON against its
//! schema.

mod against;
mod answers;
mod golden;
mod kept;
mod page;
mod rules;
mod schema;
mod synthetic;
