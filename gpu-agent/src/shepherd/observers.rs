//! Observers inside of an attempt's processes: the Python companion, and the shim that watches calls of the driver. Both
//! report into the attempt's pipe.

use std::collections::BTreeMap;
use std::path::Path;

use tessera_agent_core::environment::with_first_path;
use tessera_frames::kernel::variables;

use super::memory_pipe::{MemoryPipe, SparePipe};
use super::protocol::SpawnOrder;

/// Makes the pipe for the observers in an attempt's processes, and names it, the companion and the watch in the program's
/// environment. Without a pipe the attempt runs like any other.
pub fn observers_of(
    data: &Path,
    order: &mut SpawnOrder,
    spare: Option<SparePipe>,
) -> Option<MemoryPipe> {
    let (companion, watch) = (order.companion.clone(), order.watch.clone());
    if companion.is_none() && watch.is_none() {
        return None;
    }
    let pipe = MemoryPipe::make(data, order.attempt, spare).ok()?;
    if let Some(container) = &mut order.container {
        container.observe(&pipe.path().display().to_string(), watch.as_deref());
    }
    let env = &mut order.run.env;
    env.insert(variables::MEMORY_PIPE.to_owned(), pipe.path().display().to_string());
    if let Some(folder) = companion {
        put_first(env, "PYTHONPATH", &folder);
    }
    if let Some(shim) = watch {
        watch_with(env, &shim);
    }
    Some(pipe)
}

/// Puts the shim before the driver, as for jobs that share a slice kernel by kernel, which have it already.
fn watch_with(env: &mut BTreeMap<String, String>, shim: &str) {
    env.insert(variables::WATCH.to_owned(), variables::WATCH_ON.to_owned());
    let has_shim = |preloaded: &String| preloaded.split(':').any(|library| library == shim);
    if env.get("LD_PRELOAD").is_some_and(has_shim) {
        return;
    }
    put_first(env, "LD_PRELOAD", shim);
    if let Some(folder) = Path::new(shim).parent() {
        put_first(env, "LD_LIBRARY_PATH", &folder.display().to_string());
    }
}

/// Puts an entry before those of a list of paths.
fn put_first(env: &mut BTreeMap<String, String>, name: &str, entry: &str) {
    let paths = with_first_path(env.get(name), entry);
    env.insert(name.to_owned(), paths);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shim_comes_first_and_once() {
        let mut env = BTreeMap::from([("LD_PRELOAD".to_owned(), "/lib/own.so".to_owned())]);

        watch_with(&mut env, "/data/shim/libcuda.so.1");
        watch_with(&mut env, "/data/shim/libcuda.so.1");

        assert_eq!(env["LD_PRELOAD"], "/data/shim/libcuda.so.1:/lib/own.so");
        assert_eq!(env["LD_LIBRARY_PATH"], "/data/shim");
        assert_eq!(env["TESSERA_WATCH"], "on");
    }
}
