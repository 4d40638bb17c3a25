-- Everything that only some calls need; ends with `machine_end.lua`.
local function machine()
local unpack_packed = cmsgpack.unpack
local format, match = string.format, string.match
local ceil, floor = math.ceil, math.floor
