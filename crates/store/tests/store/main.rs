//! Tests of the store through its public face. One program, so that it is linked once.

mod common;
mod gc;
mod hooked;
mod states;
