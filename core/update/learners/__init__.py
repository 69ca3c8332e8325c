"""Where do the weights that train live: in this process, or split over several?"""
