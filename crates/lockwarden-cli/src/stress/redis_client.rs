//! Connections of an existing client library to the server of the run: for the styles that are not ours, and for looking
//! at the server.

use crate::failure::Failure;
use lockwarden::{
    Error,
    store::{
        redis::{Address, RedisSettings},
        url::StoreUrl,
    },
};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo,
    RedisResult, aio::MultiplexedConnection,
};
use std::time::Duration;

/// As long as a client of a web service would wait; a busy server is what this is about.
const PATIENCE: Duration = Duration::from_secs(5);

/// A client of the server that the URL names.
pub(super) fn of_url(url: &str) -> Result<Client, Failure> {
    let StoreUrl::Redis(settings) = url.parse::<StoreUrl>()? else {
        return Err(Error::Invalid(format!("{url:?} is no Redis server")).into());
    };
    Ok(of(&settings).map_err(|error| Error::Invalid(error.to_string()))?)
}

fn of(settings: &RedisSettings) -> RedisResult<Client> {
    let address = match &settings.address {
        Address::Tcp { host, port, tls: false } => ConnectionAddr::Tcp(host.clone(), *port),
        Address::Tcp { host, port, tls: true } => ConnectionAddr::TcpTls {
            host: host.clone(),
            port: *port,
            insecure: false,
            tls_params: None,
        },
        Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
    };
    // Nothing but what the lock code asks for should count as its commands.
    let mut login =
        RedisConnectionInfo::default().set_db(i64::from(settings.db)).set_skip_set_lib_name();
    if let Some(user) = &settings.user {
        login = login.set_username(user);
    }
    if let Some(password) = &settings.password {
        login = login.set_password(password);
    }
    Client::open(address.into_connection_info()?.set_redis_settings(login))
}

/// A new connection.
pub(super) async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    client.get_multiplexed_async_connection_with_config(&config).await
}
