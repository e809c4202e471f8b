"""A module that cannot be imported here, for what it imports is not there."""

import notthere

make = notthere.make
