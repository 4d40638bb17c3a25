
return enter, {
  [97 --[[ACQUIRE]]] = acquire, [110 --[[RENEW]]] = renew, [114 --[[RELEASE]]] = release,
  [99 --[[CANCEL]]] = cancel, [118 --[[REVOKE]]] = revoke, [108 --[[RECALL]]] = recall, [115 --[[SHOW]]] = show, [98 --[[HEARTBEAT]]] = beat,
  [101 --[[ECHO]]] = echo,
}
end
