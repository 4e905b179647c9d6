mod ending;
mod files;
mod harness;
mod limits;
mod network;
mod outside;
mod running;
