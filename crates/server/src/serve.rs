//! Accepts connections and distributes them over threads.
//!
//! Each thread has its own runtime, and a connection stays on one thread. A request therefore starts and ends on the
//! same thread and wakes no other, which on an idle machine costs as much time as the request itself. One task accepts
//! connections and assigns them to the threads in turn.

use crate::{App, router};
use axum::serve::Listener;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// More threads have not made the server faster.
const THREADS_MAX: usize = 16;

/// The connections that are assigned to one thread.
struct AssignedConnections {
    connections: mpsc::UnboundedReceiver<std::net::TcpStream>,
    address: SocketAddr,
}

impl Listener for AssignedConnections {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            let Some(connection) = self.connections.recv().await else {
                // The server accepts no more connections. The open ones are served to their end.
                return std::future::pending().await;
            };
            let peer = connection.peer_addr();
            if let (Ok(connection), Ok(peer)) = (TcpStream::from_std(connection), peer) {
                return (connection, peer);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// Serves until `until` resolves, then finishes open requests.
pub async fn serve(listener: TcpListener, app: Arc<App>, until: impl Future<Output = ()> + Send) -> io::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(THREADS_MAX);
    let address = listener.local_addr()?;
    let (stop, stopping) = watch::channel(false);
    let (ended, mut all_ended) = mpsc::channel::<()>(1);
    let mut threads_in_turn = Vec::with_capacity(threads);
    for n in 0..threads {
        let (sender, connections) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (app, mut stopping, ended) = (app.clone(), stopping.clone(), ended.clone());
        let work = move || {
            let until = async move { drop(stopping.wait_for(|is_stopping| *is_stopping).await) };
            let serving =
                axum::serve(AssignedConnections { connections, address }, router(app)).with_graceful_shutdown(until);
            if let Err(error) = runtime.block_on(serving.into_future()) {
                tracing::error!(%error, "connections can no longer be served");
            }
            drop(ended);
        };
        std::thread::Builder::new().name(format!("http-{n}")).spawn(work)?;
        threads_in_turn.push(sender);
    }
    drop(ended);
    let accept_loop = async {
        for sender in threads_in_turn.iter().cycle() {
            match listener.accept().await.and_then(|(socket, _)| without_delay(socket)) {
                // The thread has ended only if the process is about to end.
                Ok(socket) => drop(sender.send(socket)),
                // Most likely the process has too many open files. Some will be closed soon.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    };
    tokio::select! {
        () = accept_loop => {}
        () = until => {}
    }
    stop.send_replace(true);
    // Returns when the last thread has dropped its sender.
    all_ended.recv().await;
    Ok(())
}

/// Disables Nagle's algorithm: responses are small and complete, so a delay only adds latency.
fn without_delay(socket: TcpStream) -> io::Result<std::net::TcpStream> {
    socket.set_nodelay(true)?;
    socket.into_std()
}
