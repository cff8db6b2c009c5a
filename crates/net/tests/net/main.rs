//! The service as guests see it: real Linux TCP/IP in network namespaces with TAP devices, servers in another namespace as the outside.
//!
//! Everything is made and removed by the tests. They need root for namespaces and say so if they are not.

mod dns;
mod edge;
mod hostile;
mod inside;
mod lifecycle;
mod limits;
mod members;
mod reach;
mod tap;
mod world;
