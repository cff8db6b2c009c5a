//! Tests of the store through its public face. One program, so that it is linked once.

mod chains;
mod common;
mod damage;
mod faults;
mod gc;
mod hooked;
mod kill;
mod moves;
mod registry;
mod s3;
mod states;
