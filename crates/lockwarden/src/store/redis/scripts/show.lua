-- What stands about a name. Changes nothing.
-- KEYS       the lock
-- answers    SHOWN

local function show()
  local list = holders(1000000)
  local it = list[1]
  answer(20 --[[SHOWN]])
  add_holder(it)
  -- -1: nobody holds it, or a foreign client.
  add(it and (subscribers(it.session) > 0 and 1 or 0) or -1)
  add(#list > 1 and #list - 1 or 0)
  for n = 2, #list do
    add_holder(list[n])
    add(subscribers(list[n].session) > 0 and 1 or 0)
  end
  local counted = last + 1
  add(0)
  local from, step = 0, 500
  while true do
    local tokens, texts = places(from, from + step - 1)
    for i = 1, #tokens do
      if texts[i] then
        local ticket = ticket_of(tokens[i], texts[i])
        local left = ticket.deadline
        if left >= 0 then
          left = left > now and floor((left - now) / 1000) or 0
        end
        add(ticket.token)
        add(ticket.session)
        add(subscribers(ticket.session) > 0 and 1 or 0)
        add(held_ms(ticket.since))
        add(left)
        add(ticket.several and 1 or 0)
        add(ticket.party)
        add(mode_text(ticket.count, ticket.of))
        reply[counted] = reply[counted] + 1
      end
    end
    if #tokens < step then
      return
    end
    from = from + step
  end
end
