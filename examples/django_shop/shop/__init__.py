"""A shop whose orders hold four locks: of the user, the product, the coupon and the branch's order numbers."""
