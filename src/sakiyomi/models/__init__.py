"""Models as bytes: headers, tensor groups, read bytes, devices, ceilings."""
