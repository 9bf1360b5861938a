//! stub
use super::failure::Failure;

#[derive(clap::Args)]
pub struct Schema {}

impl Schema {
    pub fn run(&self) -> Result<u8, Failure> {
        Ok(0)
    }
}
