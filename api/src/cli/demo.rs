//! stub
use super::failure::Failure;
use super::session::Session;

#[derive(clap::Args)]
pub struct Demo {}

impl Demo {
    pub async fn run(self, _session: &Session) -> Result<u8, Failure> {
        Ok(0)
    }
}
