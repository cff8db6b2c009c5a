//! Tier 1: the whole path of a fork with nano guests on real `/dev/kvm`.
//!
//! Every test is skipped, loudly, where KVM runs no guest at all; that is decided without the
//! monitor, so a broken monitor fails here and is not skipped. There are no assertions about time.

mod arrive;
mod bed;
mod fork;
mod kill;
mod model;
mod refuse;
mod save;
mod stop;
