//! A connection to the server of a run that mends itself: the server may be restarted meanwhile.

use super::redis_client;
use redis::{Client, Cmd, FromRedisValue, RedisResult, aio::MultiplexedConnection};
use std::sync::Arc;

/// The connection. Clones share it.
#[derive(Clone)]
pub(super) struct ServerLink {
    client: Client,
    /// None after an error: it is made anew.
    connection: Arc<tokio::sync::Mutex<Option<MultiplexedConnection>>>,
}

impl ServerLink {
    /// Connects when it is first asked something.
    pub(super) fn new(client: Client) -> ServerLink {
        ServerLink { client, connection: Arc::default() }
    }

    /// One command and its answer.
    pub(super) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let mut place = self.connection.lock().await;
        let mut connection = match place.take() {
            Some(connection) => connection,
            None => redis_client::connect(&self.client).await?,
        };
        let answer = command.query_async(&mut connection).await;
        if answer.as_ref().err().is_none_or(|error| !error.is_unrecoverable_error()) {
            *place = Some(connection);
        }
        answer
    }
}
