
return {
  enter = enter, acquire = acquire, renew = renew, release = release, cancel = cancel, revoke = revoke,
  show = show, beat = beat, echo = echo,
}
end
