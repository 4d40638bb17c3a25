
return enter, {
  [97 --[[ACQUIRE]]] = acquire, [110 --[[RENEW]]] = renew, [114 --[[RELEASE]]] = release,
  [99 --[[CANCEL]]] = cancel, [118 --[[REVOKE]]] = revoke, [108 --[[RECALL]]] = recall,
  [109 --[[CONVERT]]] = convert, [104 --[[HAND_OVER]]] = hand_over, [120 --[[EXTEND_BY_VALUE]]] = extend_by_value,
  [111 --[[LEAVE]]] = leave, [115 --[[SHOW]]] = show, [98 --[[HEARTBEAT]]] = beat,
  [101 --[[ECHO]]] = echo,
}
end
