-- Everything that only some calls need; ends with `machine_end.lua`.
local function machine()
local unpack_packed = cmsgpack.unpack
local format, match, ceil, floor = string.format, string.match, math.ceil, math.floor
