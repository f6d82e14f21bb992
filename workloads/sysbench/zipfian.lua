-- Ids 1 to table-size, id i with a probability proportional to i ^ -0.8, by rejection-inversion (Hörmann and
-- Derflinger, 1996). sysbench has this from 1.1 on only.

local EXPONENT = 0.8

-- The integral of x ^ -EXPONENT, and its inverse.
local function area(x)
    return x ^ (1 - EXPONENT) / (1 - EXPONENT)
end

local function inverse(y)
    return (y * (1 - EXPONENT)) ^ (1 / (1 - EXPONENT))
end

local function density(x)
    return x ^ -EXPONENT
end

local LOWEST = area(1.5) - 1
local SURE = 2 - inverse(area(2.5) - density(2)) -- so close below a number, no second look is needed

return function()
    local size = sysbench.opt.table_size
    local highest = area(size + 0.5)
    while true do
        local y = highest + sysbench.rand.uniform_double() * (LOWEST - highest)
        local x = inverse(y)
        local id = math.min(math.max(math.floor(x + 0.5), 1), size)
        if id - x <= SURE or y >= area(id + 0.5) - density(id) then
            return id
        end
    end
end
