//! stub
use super::failure::Failure;
use super::session::Session;

#[derive(clap::Args)]
pub struct Replay {}

impl Replay {
    pub async fn run(self, _session: &Session) -> Result<u8, Failure> {
        Ok(0)
    }
}
