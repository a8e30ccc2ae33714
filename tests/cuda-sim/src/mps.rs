//! The client's side of simulated MPS. See `mps_control` for the daemon's.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::visible::Visible;
use crate::{Answer, code};

/// A connection that makes this process a client until it ends.
pub(crate) struct Client {
    percentage: f64,
    _connection: UnixStream,
}

impl Client {
    /// Joins the control daemon of the pipe directory. Without a daemon there is no MPS, and no error either.
    pub(crate) fn connect(device: &Visible) -> Answer<Option<Self>> {
        let folder =
            std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| "/tmp/nvidia-mps".into(), PathBuf::from);
        let Ok(mut connection) = UnixStream::connect(folder.join("control")) else { return Ok(None) };
        let limit = Some(Duration::from_secs(10));
        let (gi, ci) =
            device.instance.map_or((String::from("-"), String::from("-")), |(gi, ci)| (gi.to_string(), ci.to_string()));
        let mut answer = String::new();
        let asked = connection
            .set_read_timeout(limit)
            .and_then(|()| writeln!(connection, "client {} {gi} {ci}", device.gpu))
            .and_then(|()| BufReader::new(&connection).read_line(&mut answer));
        let allowed = asked.ok().and_then(|_| answer.strip_prefix("welcome ")?.trim().parse::<f64>().ok());
        let allowed = allowed.ok_or(code::MPS_CONNECTION_FAILED)?;
        // The daemon's share can only be lowered.
        let wanted = std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").ok().and_then(|text| text.parse::<f64>().ok());
        let percentage = wanted.filter(|wanted| *wanted > 0.0).map_or(allowed, |wanted| wanted.min(allowed));
        Ok(Some(Self { percentage, _connection: connection }))
    }

    /// The share of the multiprocessors that the process may use.
    pub(crate) fn percentage(&self) -> f64 {
        self.percentage
    }
}
