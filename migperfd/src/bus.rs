//! The interfaces of `org.migperf1` on connections: one for each client in local mode, later the system bus.
//!
//! Objects hold no state of their own: they show what the queue's views say, on every connection alike.

mod gpu;
mod job;
mod manager;

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};

use migperf_core::ids::JobId;
use migperf_core::record::Owner;
use migperf_dbus::names;
use tokio::sync::watch;
use zbus::connection::Builder;
use zbus::fdo::ObjectManager;
use zbus::{Connection, Guid};

use self::job::JobObject;
use self::manager::ManagerObject;
use crate::admission;
use crate::queue::{ConnectionId, JobView, Queue};

static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Serves one client, peer-to-peer, until its connection ends. The client is `owner`, as the socket's credentials say.
///
/// # Errors
/// If the connection can't be set up.
pub async fn serve_peer(stream: UnixStream, owner: Owner, queue: Queue) -> zbus::Result<()> {
    let id = ConnectionId(CONNECTIONS.fetch_add(1, Ordering::Relaxed));
    let served = serve(stream, owner, &queue, id).await;
    // However the connection ended: what is attached to it ends too.
    queue.connection_closed(id).await;
    served
}

async fn serve(stream: UnixStream, owner: Owner, queue: &Queue, id: ConnectionId) -> zbus::Result<()> {
    let mut additions = queue.additions();
    let connection = Builder::unix_stream(stream)
        .server(Guid::generate())
        .p2p()
        .serve_at(names::ROOT, ObjectManager)
        .serve_at(names::ROOT, ManagerObject::new(queue.clone(), owner, id))
        .build()
        .await?;
    add_gpus(&connection, queue).await?;
    for view in queue.views() {
        add_job(&connection, view).await?;
    }
    loop {
        tokio::select! {
            () = connection.closed() => return Ok(()),
            added = additions.recv() => match added {
                Ok(job) => add_job_by_id(&connection, queue, job).await?,
                // Too many at once: the objects are there when they are asked for.
                Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return Ok(()),
            },
        }
    }
}

async fn add_job_by_id(connection: &Connection, queue: &Queue, job: JobId) -> zbus::Result<()> {
    match queue.view(job) {
        Some(view) => add_job(connection, view).await,
        None => Ok(()),
    }
}

/// Puts a job's object on a connection, if it is not there, and keeps its properties' signals going.
async fn add_job(connection: &Connection, view: watch::Receiver<JobView>) -> zbus::Result<()> {
    let path = names::job_path(view.borrow().id.0);
    if connection.object_server().at(path.as_str(), JobObject::new(view.clone())).await?.is_none() {
        tokio::spawn(job::announce(connection.clone(), path, view));
    }
    Ok(())
}

/// Puts the GPUs that are there now on a connection. Looking holds NVML for a moment only.
async fn add_gpus(connection: &Connection, queue: &Queue) -> zbus::Result<()> {
    let nvml = queue.settings().nvml.clone();
    let Ok(inventory) = tokio::task::spawn_blocking(move || admission::look(nvml.as_deref())).await else {
        return Ok(());
    };
    for found in inventory.gpus {
        let path = names::gpu_path(found.index);
        connection.object_server().at(path.as_str(), gpu::GpuObject::new(found)).await?;
    }
    Ok(())
}
